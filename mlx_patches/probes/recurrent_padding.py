"""Feeds a tiny model of the target's family two prompts of unequal length, padded either way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from .._patch import Target
from . import NotApplicable, Result

PROMPTS = ([5, 9, 2, 7, 3, 11, 4], [8, 6, 10, 3])
_CHUNK = 4
_STEPS = 3
TOLERANCE = 1e-3


def probe(target: Target) -> Result:
    """Red where a row says something else in the batch than alone."""
    from ..lab import Family, NotBuilt, engine
    from ..lab.build import build

    family = Family(target.distribution, target.module.split(".")[2])
    try:
        model = build(family)
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    if hasattr(model.module, "_rope_deltas") and not engine.own_positions(model):
        raise NotApplicable("in this release the model keeps its rows' positions: another defect")
    worst, place, fed = 0.0, "", 0
    with no_aliases():
        for name, feed in (("left", left), ("right", right)):
            try:
                engine.forget(model)
                said = feed(model)
            except NotApplicable:
                continue
            fed += 1
            for row, prompt in enumerate(PROMPTS):
                apart = difference(said[row], alone(model, prompt))
                if not apart <= worst:
                    worst, place = apart, f"{name}-padded, row {row}"
    if not fed:
        raise NotApplicable("this release batches no such caches")
    if not worst <= TOLERANCE:
        return Result(True, f"{place}: differs by {worst:.2g} of the logits' scale", worst)
    return Result(False, f"largest difference {worst:.2g} of the logits' scale", worst)


@contextlib.contextmanager
def no_aliases() -> Iterator[None]:
    """With the offsets of batch caches repaired: some of the families trip over those as well."""
    from .._manager import Manager
    from ..patches.shared.offset_alias import PATCH
    from .child import anything_goes

    manager = Manager(anything_goes(PATCH))
    manager.apply(PATCH)
    try:
        yield
    finally:
        manager.restore()


def left(model: Any) -> list[list[Any]]:
    """What each row of a left-padded batch is told after its prompt and at each step."""
    from ..lab import engine

    longest = max(map(len, PROMPTS))
    padding = [longest - len(prompt) for prompt in PROMPTS]
    cache = engine.batch_cache(model, padding)
    table = [[0] * pad + prompt for pad, prompt in zip(padding, PROMPTS, strict=True)]
    out = in_pieces(model, cache, table)
    return decoded(model, cache, [[row[-1]] for row in out])


def right(model: Any) -> list[list[Any]]:
    """The same right-padded, as engines that merge new rows feed prompts."""
    from ..lab import engine

    cache = engine.empty_batch(model, len(PROMPTS))
    lengths = [len(prompt) - 1 for prompt in PROMPTS]
    engine.prepare(cache, lengths)
    longest = max(lengths)
    table = [prompt[:-1] + [0] * (longest - len(prompt) + 1) for prompt in PROMPTS]
    in_pieces(model, cache, table)
    engine.finalize(cache)
    out = model.call([[prompt[-1]] for prompt in PROMPTS], cache)
    return decoded(model, cache, [[row[-1]] for row in out])


def in_pieces(model: Any, cache: Any, table: Sequence[Sequence[int]]) -> Any:
    """Feed a table of tokens in pieces; returns the last piece's logits."""
    out = None
    for start in range(0, len(table[0]), _CHUNK):
        out = model.call([line[start : start + _CHUNK] for line in table], cache)
    return out


def decoded(model: Any, cache: Any, said: list[list[Any]]) -> list[list[Any]]:
    """Add what the rows are told over a few steps of fixed tokens."""
    for step in range(_STEPS):
        out = model.call([[step + 1]] * len(said), cache)
        for row, logits in enumerate(out):
            said[row].append(logits[-1])
    return said


def alone(model: Any, prompt: list[int]) -> list[Any]:
    """What one row is told by itself."""
    cache = model.make_cache()
    out = model.call([prompt], cache)
    return decoded(model, cache, [[out[0, -1]]])[0]


def difference(here: Sequence[Any], there: Sequence[Any]) -> float:
    """The largest difference of two rows of logits, relative to the second's scale."""
    import mlx.core as mx

    one, other = mx.stack(list(here)), mx.stack(list(there))
    return float((mx.abs(one - other).max() / mx.abs(other).max()).item())
