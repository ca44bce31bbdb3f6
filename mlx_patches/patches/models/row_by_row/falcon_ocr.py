"""Falcon OCR since mlx-vlm 0.5.0: a prompt's positions are passed by the decoder's own argument."""

from typing import Any

from ....core.arrays import mx
from ..._shared.parts import Overlay
from .offsets import EMBEDDINGS, REFUSED, TEXT, BatchCall, count_positions

# The model's attribute for all rows' deltas; older releases keep one row's.
DELTAS = "_rope_deltas"
POSITIONS = "position_ids"
# Which tokens attend to each other, such as those of one image.
MASK = "attention_mask_4d"
# All arguments of an image besides its embeddings. The model ignores the last two.
IMAGE = (POSITIONS, "pos_hw", MASK, "pixel_values", "image_grid_hw")


def prepare(call: BatchCall) -> Any:
    """Pass the position ids (rows, length) of a prompt's rows to the decoder.

    The model counts a prompt's positions from its padding, even if it gets position ids. It
    computes those of a decode step by row, so decode steps are unchanged.

    Returns:
        ``REFUSED`` for prompts other than text and ``has_images``, and in older releases, whose
        position tables are shared by all rows.
    """
    if not hasattr(call.model, DELTAS):
        return REFUSED
    if call.length == 1:
        return None
    if call.is_text() and call.get(EMBEDDINGS) is not None:
        own = call.offset.positions(call.length)
    elif call.is_text():  # the model adds a row's delta to the positions of token ids only
        own = count_positions(call.offset, call.length, call.start_deltas())
    elif has_images(call):
        own, mask = call.get(POSITIONS), call.get(MASK)
        shown = mx.arange(mask.shape[-1]) >= -call.offset.rows[:, None]  # not the left padding
        call.put(MASK, mask & shown[:, None, None, :])
    else:
        return REFUSED
    given = call.get("rope_deltas")
    if given is not None:  # the model would keep them, but the call goes to a copy
        call.model._rope_deltas = given
    call.put_model(model=AtPositions(call.model.model, own))
    return None


def has_images(call: BatchCall) -> bool:
    """Whether prompts with images begin, and each row has its own positions and mask.

    An engine that feeds them in a batch with text prompts passes only those of the images, without
    their rows.
    """
    rows, length = call.shape
    expected = {
        POSITIONS: (rows, length),
        "pos_hw": (rows, length, 2),
        MASK: (rows, 1, length, length),
    }
    if call.offset != 0 or not call.names().issubset((*TEXT, EMBEDDINGS, *IMAGE)):
        return False
    sizes = {name: getattr(call.get(name), "shape", None) for name in expected}
    return (
        sizes == expected and call.get(MASK).dtype == mx.bool_ and call.get(EMBEDDINGS) is not None
    )


class AtPositions(Overlay):
    """A decoder that uses these position ids instead of its caller's."""

    def __init__(self, decoder: Any, positions: Any):
        super().__init__(decoder)
        self._positions = positions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole(*args, **{**kwargs, POSITIONS: self._positions})
