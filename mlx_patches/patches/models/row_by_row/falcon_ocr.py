"""Falcon OCR from mlx-vlm 0.5.0 on: a prompt's positions go to the decoder's own argument."""

from __future__ import annotations

import inspect
from typing import Any

from ..._shared.parts import Overlay, with_parts
from ..._shared.row_calls import find_argument
from .offsets import (
    EMBEDDINGS,
    REFUSED,
    TEXT,
    RowOffset,
    count_positions,
    given_names,
    is_text,
    put_argument,
    put_model,
    start_deltas,
)

# The model's attribute for all rows' deltas; older releases keep one row's.
DELTAS = "_rope_deltas"
POSITIONS = "position_ids"
# Which tokens attend to each other: those of one image do.
MASK = "attention_mask_4d"
# All that a call brings for an image, beside its embeddings. The model ignores the last two.
IMAGE = (POSITIONS, "pos_hw", MASK, "pixel_values", "image_grid_hw")


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Give the decoder the position ids (rows, length) of a prompt's rows.

    The model counts a prompt's positions from its padding, also where it is given others. It
    computes those of a decode step by row: a step is left to it.

    Returns:
        ``REFUSED`` for other prompts than texts and ``has_images``; and in older releases, whose
        tables of positions all rows share.
    """
    model = bound.args[0]
    if not hasattr(model, DELTAS):
        return REFUSED
    if shape[1] == 1:
        return None
    if is_text(bound):
        own = text_positions(bound, offset, shape)
    elif has_images(bound, offset, shape):
        own = find_argument(bound, POSITIONS)
        put_argument(bound, MASK, hide_padding(find_argument(bound, MASK), offset))
    else:
        return REFUSED
    given = find_argument(bound, "rope_deltas")
    if given is not None:  # the model keeps them, and the call goes to a copy of it
        model._rope_deltas = given
    put_model(bound, with_parts(model, model=AtPositions(model.model, own)))
    return None


def text_positions(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """The positions (rows, length) of text, as the model computes them for each row alone.

    It adds a row's delta to the positions of token ids, and not to those of embeddings.
    """
    rows, length = shape
    if find_argument(bound, EMBEDDINGS) is not None:
        return offset.positions(length)
    return count_positions(offset, length, start_deltas(bound, offset, rows))


def has_images(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> bool:
    """Whether prompts with images begin, and each row brings its own positions and mask.

    An engine that feeds them in one batch with texts passes those of the images alone, and
    nothing tells whose they are.
    """
    rows, length = shape
    expected = {
        POSITIONS: (rows, length),
        "pos_hw": (rows, length, 2),
        MASK: (rows, 1, length, length),
    }
    if offset != 0 or not given_names(bound).issubset((*TEXT, EMBEDDINGS, *IMAGE)):
        return False
    sizes = {name: getattr(find_argument(bound, name), "shape", None) for name in expected}
    import mlx.core as mx

    return (
        sizes == expected
        and find_argument(bound, MASK).dtype == mx.bool_
        and find_argument(bound, EMBEDDINGS) is not None
    )


def hide_padding(mask: Any, offset: RowOffset) -> Any:
    """A prompt's mask (rows, 1, length, length), with the rows' left padding hidden."""
    import mlx.core as mx

    shown = mx.arange(mask.shape[-1]) >= -offset.rows[:, None]
    return mask & shown[:, None, None, :]


class AtPositions(Overlay):
    """A decoder that is fed these position ids, whichever its caller computes."""

    def __init__(self, decoder: Any, positions: Any):
        super().__init__(decoder)
        self._positions = positions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The decoder's output."""
        return self._whole(*args, **{**kwargs, POSITIONS: self._positions})
