"""Removes rows during prefill, then feeds the remaining ones their answer."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    import_module,
    make_prompt_batch,
    mx,
    own_module,
    require_names,
)

# Only the second row has padding.
RESTS = ((1, 2, 3, 4), (5, 6), (7, 8, 9, 10))
ANSWER = (11, 12, 13)
WORDS, WINDOW = 16, 16


def probe(target: Target) -> Result:
    """Red if caches take the answer for padding, or keep padding that all rows have."""
    kind = own_module(target).PromptProcessingBatch
    require_names(kind, "remove")
    if target.name.endswith("generate"):
        _, _, padding = feed_rest(kind, dropped=(0, 2))
        return Result(padding > 0, f"a single row has {padding} pad tokens")
    masked, held, _ = feed_rest(kind, dropped=(1,))
    want = [[*rest, *ANSWER] for rest in (RESTS[0], RESTS[2])]
    return Result(
        masked > 0 or held != want,
        f"masks hide {masked} tokens of the answer, a rotating cache holds {held[0]}",
    )


class Reader:
    """A model with a recurrent, a rotating and a plain cache, whose keys are the tokens."""

    layers: tuple[()] = ()

    def __call__(self, tokens: Any, cache: Any, **kwargs: Any) -> Any:
        recurrent, *others = cache
        keys = tokens.astype(mx.float32)[:, None, :, None]
        for layer in others:
            layer.update_and_fetch(keys, keys)
        recurrent.advance(tokens.shape[1])
        return mx.eye(WORDS)[tokens]


def feed_rest(
    kind: Any, dropped: Sequence[int], rests: Any = RESTS, left: bool = False
) -> tuple[int, list[list[int]], int]:
    """Feed prompts, without the rows that are dropped after the first chunk, then an answer.

    Returns how many tokens of the answer the recurrent cache's masks hide, each row's tokens in the
    rotating cache, and the padding that all rows have in the plain cache. ``left``: the prompts are
    left-padded.
    """
    batch = start_batch(kind, rests, left)
    for row in dropped:
        batch.remove(row)
    recurrent, rotating, plain = caches = list(batch.prompt_cache)
    while batch.needs_processing():
        batch.prompt_step()
    batch.generate(lambda logprobs: mx.argmax(logprobs, axis=-1), lambda token: False)
    masked, rows = 0, recurrent[0].shape[0]
    for token in ANSWER:
        mask = recurrent.make_mask(1)
        masked += 0 if mask is None else int((~mask).sum().item())
        Reader()(mx.array([[token]] * rows), caches)
    held = [rotating.extract(row).keys.flatten().tolist() for row in range(rows)]
    tokens = [[int(token) for token in row] for row in held]
    return masked, tokens, plain.left_padding.min().item()


def start_batch(kind: Any, rests: Any, left: bool = False) -> Any:
    caches = import_module("mlx_vlm.models.cache")
    rows, longest = len(rests), max(map(len, rests))
    pads = [longest - len(rest) for rest in rests]
    begin = pads if left else [0] * rows
    recurrent = caches.ArraysCache(1, begin if left else None)
    recurrent[0] = mx.zeros((rows, 1))
    rotating, plain = caches.BatchRotatingKVCache(WINDOW, begin), caches.BatchKVCache(begin)
    batch = make_prompt_batch(
        kind,
        rests,
        Reader(),
        prefill_step_size=2,
        warm_cache=[recurrent, rotating, plain],
        right_pad_per_row=None if left else pads,
    )
    batch.prompt_step()
    return batch
