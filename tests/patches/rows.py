"""Rows of unequal length in one left-padded batch, each compared with its solo run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from mlx_patches.lab import LabModel, engine

from ..releases import costs

TOLERANCE = 1e-3


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    longest = max(map(len, rows))
    padding = [longest - len(row) for row in rows]
    return padding, [[0] * pad + list(row) for pad, row in zip(padding, rows, strict=True)]


PROMPTS = ([5, 9, 2, 7, 3], [8, 6])
PADDING, TABLE = pad_left(PROMPTS)


def logits_of(out: Any) -> Any:
    return getattr(out, "logits", out)


def assert_close(output: Any, solo: Any) -> None:
    assert mx.abs(output - solo).max().item() <= TOLERANCE


def assert_close_in_scale(output: Any, solo: Any) -> None:
    scale = max(1.0, mx.abs(solo).max().item())
    assert mx.abs(output - solo).max().item() <= TOLERANCE * scale


def compare(batch: Any, model: LabModel) -> None:
    """Compare the logits of a batch with each prompt's solo run."""
    for row, prompt in enumerate(PROMPTS):
        engine.forget(model)
        assert_close(batch[row, PADDING[row] :], model.call([prompt], model.make_cache())[0])


def compare_step(batch: Any, model: LabModel) -> None:
    """The same for a step after the prompts, with the tokens 1 and 2."""
    for row, prompt in enumerate(PROMPTS):
        engine.forget(model)
        solo = model.call([[*prompt, row + 1]], model.make_cache())[0, -1]
        assert_close(batch[row, -1], solo)


@contextmanager
def no_reads() -> Iterator[None]:
    """Neither the patches nor the release's models may read the device."""
    with costs.reads(costs.with_models()) as seen:
        yield
    assert not seen, "\n".join(seen)
