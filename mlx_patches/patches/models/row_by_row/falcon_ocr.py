"""Falcon OCR since mlx-vlm 0.5.0: a prompt's positions are passed by the decoder's own argument."""

import inspect
from typing import Any

from ..._shared.arrays import mx
from ..._shared.parts import Overlay, with_parts
from ..._shared.row_calls import find_argument
from .offsets import (
    EMBEDDINGS,
    REFUSED,
    TEXT,
    RowOffset,
    count_positions,
    find_names,
    is_text,
    put_argument,
    put_model,
    start_deltas,
)

# The model's attribute for all rows' deltas; older releases keep one row's.
DELTAS = "_rope_deltas"
POSITIONS = "position_ids"
# Which tokens attend to each other, such as those of one image.
MASK = "attention_mask_4d"
# All arguments of an image besides its embeddings. The model ignores the last two.
IMAGE = (POSITIONS, "pos_hw", MASK, "pixel_values", "image_grid_hw")


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Pass the position ids (rows, length) of a prompt's rows to the decoder.

    The model counts a prompt's positions from its padding, even if it gets position ids. It
    computes those of a decode step by row, so decode steps are unchanged.

    Returns:
        ``REFUSED`` for prompts other than text and ``has_images``, and in older releases, whose
        position tables are shared by all rows.
    """
    model = bound.args[0]
    if not hasattr(model, DELTAS):
        return REFUSED
    if shape[1] == 1:
        return None
    if is_text(bound):
        own = count_text_positions(bound, offset, shape)
    elif has_images(bound, offset, shape):
        own = find_argument(bound, POSITIONS)
        put_argument(bound, MASK, hide_padding(find_argument(bound, MASK), offset))
    else:
        return REFUSED
    given = find_argument(bound, "rope_deltas")
    if given is not None:  # the model would keep them, but the call goes to a copy
        model._rope_deltas = given
    put_model(bound, with_parts(model, model=AtPositions(model.model, own)))
    return None


def count_text_positions(
    bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]
) -> Any:
    """The positions (rows, length) of text, as the model computes them for a single row.

    It adds a row's delta to the positions of token ids, but not to those of embeddings.
    """
    rows, length = shape
    if find_argument(bound, EMBEDDINGS) is not None:
        return offset.positions(length)
    return count_positions(offset, length, start_deltas(bound, offset, rows))


def has_images(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> bool:
    """Whether prompts with images begin, and each row has its own positions and mask.

    An engine that feeds them in a batch with text prompts passes only those of the images, without
    their rows.
    """
    rows, length = shape
    expected = {
        POSITIONS: (rows, length),
        "pos_hw": (rows, length, 2),
        MASK: (rows, 1, length, length),
    }
    if offset != 0 or not find_names(bound).issubset((*TEXT, EMBEDDINGS, *IMAGE)):
        return False
    sizes = {name: getattr(find_argument(bound, name), "shape", None) for name in expected}
    return (
        sizes == expected
        and find_argument(bound, MASK).dtype == mx.bool_
        and find_argument(bound, EMBEDDINGS) is not None
    )


def hide_padding(mask: Any, offset: RowOffset) -> Any:
    """A prompt's mask (rows, 1, length, length), with the rows' left padding hidden."""
    shown = mx.arange(mask.shape[-1]) >= -offset.rows[:, None]
    return mask & shown[:, None, None, :]


class AtPositions(Overlay):
    """A decoder that uses these position ids instead of its caller's."""

    def __init__(self, decoder: Any, positions: Any):
        super().__init__(decoder)
        self._positions = positions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole(*args, **{**kwargs, POSITIONS: self._positions})
