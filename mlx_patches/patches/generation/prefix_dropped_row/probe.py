"""Takes rows out of prompts in reading, and lets the remaining ones read their answer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import require_own

# The second row alone has padding.
RESTS = ((1, 2, 3, 4), (5, 6), (7, 8, 9, 10))
ANSWER = (11, 12, 13)
WORDS, WINDOW = 16, 16


def probe(target: Target) -> Result:
    """Red where, without the row that had padding, a cache takes the answer for padding."""
    require_own(target)
    kind = importlib.import_module(target.module).PromptProcessingBatch
    masked, held = read(kind, dropped=(1,))
    want = [[*rest, *ANSWER] for rest in (RESTS[0], RESTS[2])]
    return Result(
        masked > 0 or held != want,
        f"masks leave out {masked} tokens of the answer, a rotating cache holds {held[0]}",
    )


class Reads:
    """A model with a recurrent cache and a rotating one, whose keys are the tokens."""

    layers: tuple[()] = ()

    def __call__(self, tokens: Any, cache: Any, **kwargs: Any) -> Any:
        """The logits of each token."""
        mx: Any = importlib.import_module("mlx.core")
        recurrent, rotating = cache
        keys = tokens.astype(mx.float32)[:, None, :, None]
        rotating.update_and_fetch(keys, keys)
        recurrent.advance(tokens.shape[1])
        return mx.eye(WORDS)[tokens]


def read(kind: Any, dropped: Sequence[int], rests: Any = RESTS) -> tuple[int, list[list[int]]]:
    """Read prompts without the rows that are dropped after the first piece, then an answer.

    Returns:
        How many tokens of the answer the recurrent cache's masks leave out, and each row's tokens
        in the rotating cache.
    """
    mx: Any = importlib.import_module("mlx.core")
    batch = start(kind, rests)
    for row in dropped:
        batch.remove(row)
    recurrent, rotating = caches = list(batch.prompt_cache)
    while batch.needs_processing():
        batch.prompt_step()
    batch.generate(lambda logprobs: mx.argmax(logprobs, axis=-1), lambda token: False)
    masked, rows = 0, recurrent[0].shape[0]
    for token in ANSWER:
        mask = recurrent.make_mask(1)
        masked += 0 if mask is None else int((~mask).sum().item())
        Reads()(mx.array([[token]] * rows), caches)
    held = [rotating.extract(row).keys.flatten().tolist() for row in range(rows)]
    return masked, [[int(token) for token in row] for row in held]


def start(kind: Any, rests: Any) -> Any:
    """A batch of these prompts, of which the first piece was read."""
    mx: Any = importlib.import_module("mlx.core")
    caches = importlib.import_module("mlx_vlm.models.cache")
    rows, longest = len(rests), max(map(len, rests))
    recurrent = caches.ArraysCache(1)
    recurrent[0] = mx.zeros((rows, 1))
    batch = kind(
        model=Reads(),
        uids=list(range(rows)),
        input_ids=[list(rest) for rest in rests],
        max_tokens=[4] * rows,
        inputs_embeds=mx.zeros((rows, longest, 2)),
        prompt_kwargs={},
        prefill_step_size=2,
        warm_cache=[recurrent, caches.BatchRotatingKVCache(WINDOW, [0] * rows)],
        right_pad_per_row=[longest - len(rest) for rest in rests],
    )
    batch.prompt_step()
    return batch
