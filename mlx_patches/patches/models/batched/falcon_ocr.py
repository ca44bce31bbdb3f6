"""Falcon OCR from mlx-vlm 0.5.0 on: a prompt's positions go to the decoder's own argument."""

from __future__ import annotations

import inspect
from typing import Any

from ...parts import Shown, with_parts
from ..row_calls import find_argument
from .offsets import REFUSED, RowOffset, is_text, put_model, start_deltas

# The model's attribute for all rows' deltas; older releases keep one row's.
DELTAS = "_rope_deltas"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Give the decoder the position ids (rows, length) of a prompt's rows.

    The model counts a prompt's positions from its padding. It computes those of a decode step by
    row, so that a step is left to it.

    Returns:
        ``REFUSED`` for a prompt that is not text alone, and in older releases, whose tables of
        positions all rows share.
    """
    model = bound.args[0]
    if not hasattr(model, DELTAS):
        return REFUSED
    if shape[1] == 1:
        return None
    if not is_text(bound):
        return REFUSED
    own = text_positions(bound, offset, shape)
    given = find_argument(bound, "rope_deltas")
    if given is not None:  # the model keeps them, and the copy of it is dropped
        model._rope_deltas = given
    put_model(bound, with_parts(model, model=AtPositions(model.model, own)))
    return None


def text_positions(
    bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]
) -> Any:
    """The positions (rows, length) of text, as the model computes them for each row alone.

    It adds a row's delta to the positions of token ids, but not to those of embeddings.
    """
    rows, length = shape
    if find_argument(bound, "inputs_embeds") is not None:
        return offset.positions(length)
    import mlx.core as mx

    deltas = start_deltas(bound, offset, rows)
    return mx.maximum(offset.rows[:, None] + mx.arange(length) + deltas, 0)


class AtPositions(Shown):
    """A decoder that is fed these position ids, whichever its caller computes."""

    def __init__(self, decoder: Any, positions: Any):
        super().__init__(decoder)
        self._positions = positions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The decoder's output."""
        return self._whole(*args, **{**kwargs, "position_ids": self._positions})
