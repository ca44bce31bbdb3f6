"""Cohere Compass: position ids of text are passed by the model's own argument."""

import functools
from typing import Any

from ....core.arrays import mx
from ..._shared.parts import view_class
from .offsets import REFUSED, BatchCall, count_positions

# The processor's mask of a prompt's tokens, which the engine also passes for text.
PADDING = "attention_mask"


def prepare(call: BatchCall) -> Any:
    """Add position ids (rows, length), or (3, rows, length) for M-RoPE; attend in all rows at once.

    The model refuses an image without its grid. It needs no padding mask, since the caches have the
    padding: it would read the mask, and add the padding to the caches a second time. Returns
    ``REFUSED`` for a prompt that is not only text.
    """
    model, offset = call.model, call.offset
    known = getattr(call.get(PADDING), "shape", None) == call.shape
    padding = (PADDING,) if known else ()
    if call.length > 1 or offset == 0:
        if not call.is_text(*padding):
            return REFUSED
        deltas = call.start_deltas()
        model._rope_deltas = deltas
    else:
        deltas = call.find_deltas()
    if call.get("position_ids") is None:
        own = count_positions(offset, call.length, deltas)
        if model.model.rotary_emb.position_selector is not None:
            own = mx.broadcast_to(own[None], (3, *call.shape))
        call.put("position_ids", own)
        if call.length == 1:  # or the model keeps them for another request's prompt
            call.put("rope_deltas", None)
    for name in padding:
        call.put(name, None)
    # Without ``left_padding``: with it, the attention slices out each row, with two device reads
    # per layer. The mask shows the padding.
    columns = int(offset)
    at = {"offset": lambda cache: columns}
    call.put("cache", [_view()(layer, at) for layer in call.get("cache")])
    return None


@functools.cache
def _view() -> Any:
    kind: Any = view_class("offset")

    class WithoutLeftPadding(kind):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            if name == "left_padding":
                raise AttributeError(name)
            return getattr(self.__wrapped__, name)

    return WithoutLeftPadding
