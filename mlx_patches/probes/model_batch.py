"""Compares a left-padded batch with solo runs, on a tiny model of the target's family."""

import sys
from collections.abc import Sequence
from typing import Any

from ..core.arrays import mx
from ..core.patch import Target
from . import NotApplicable, Result
from .batch_invariance import measure_distance, tiny_of

PROMPTS = ([5, 9, 2, 7, 3, 11, 4], [8, 6, 10, 3])
CHUNK = 4
TOLERANCE = 1e-3
_STEPS = 3


def probe(target: Target) -> Result:
    """Red if the batch raises, or a row's logits differ from its solo run."""
    return compare_chunked(target, CHUNK)


def probe_whole(target: Target) -> Result:
    """The same with whole prompts: in chunks, some of these models are wrong even solo."""
    return compare_chunked(target, max(map(len, PROMPTS)))


def compare_chunked(target: Target, size: int) -> Result:
    """Compare the logits of a batch, fed in chunks of this size, with those of solo runs."""
    from ..lab import engine

    model = tiny_of(target)
    if not has_part(model.module, target):
        raise NotApplicable(f"no part of the tiny model is a {target.name.partition('.')[0]}")
    try:
        engine.batch_cache(model, [0, 0])
    except Exception as error:
        raise NotApplicable(f"no cache for a batch of it: {engine.where(error)}") from None
    outputs = run_padded(model, size)
    worst = max(
        measure_rows(outputs[i], run_solo(model, prompt)) for i, prompt in enumerate(PROMPTS)
    )
    detail = f"largest difference {worst:.2g} of the logits' scale"
    return Result(not worst <= TOLERANCE, detail, worst)


def has_part(model: object, target: Target) -> bool:
    """Whether the model has a module of the target's class, or the target's function exists."""
    name, _, method = target.name.partition(".")
    if not method:
        return hasattr(sys.modules.get(target.module), name)
    modules = model.modules()  # type: ignore[attr-defined]
    kinds = {(type(one).__module__, type(one).__name__) for one in modules}
    return (target.module, name) in kinds


def run_padded(model: Any, size: int = CHUNK) -> list[list[Any]]:
    """Each row's logits in a left-padded batch, after its prompt and after each step."""
    from ..lab import engine

    longest = max(map(len, PROMPTS))
    padding = [longest - len(prompt) for prompt in PROMPTS]
    cache = engine.batch_cache(model, padding)
    if len(list_recurrent(cache)) < len(list_recurrent(model.make_cache())):
        raise NotApplicable("the release does not batch recurrent caches")
    table = [[0] * pad + prompt for pad, prompt in zip(padding, PROMPTS, strict=True)]
    out = feed_chunks(model, cache, table, size)
    return decode_steps(model, cache, [[row[-1]] for row in out])


def list_recurrent(cache: Sequence[Any]) -> list[Any]:
    """The recurrent caches of a model, also those inside lists of caches."""
    layers = [part for layer in cache for part in getattr(layer, "caches", (layer,))]
    return [one for one in layers if hasattr(one, "cache") and not hasattr(one, "update_and_fetch")]


def feed_chunks(model: Any, cache: Any, table: Sequence[Sequence[int]], size: int = CHUNK) -> Any:
    """Feed a table of tokens in chunks; returns the last chunk's logits."""
    out = None
    for start in range(0, len(table[0]), size):
        out = model.call([line[start : start + size] for line in table], cache)
    return out


def decode_steps(model: Any, cache: Any, outputs: list[list[Any]]) -> list[list[Any]]:
    """Append each row's logits over ``_STEPS`` steps of fixed tokens to ``outputs``."""
    for step in range(_STEPS):
        out = model.call([[step + 1]] * len(outputs), cache)
        for row, logits in enumerate(out):
            outputs[row].append(logits[-1])
    return outputs


def run_solo(model: Any, prompt: list[int]) -> list[Any]:
    from ..lab import engine

    engine.forget(model)
    cache = model.make_cache()
    out = model.call([prompt], cache)
    return decode_steps(model, cache, [[out[0, -1]]])[0]


def measure_rows(here: Sequence[Any], there: Sequence[Any]) -> float:
    """The largest difference of two rows of logits, relative to the second's scale."""
    return measure_distance(mx.stack(list(here)), mx.stack(list(there)))
