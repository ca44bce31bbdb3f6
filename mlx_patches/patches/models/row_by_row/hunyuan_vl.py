"""Hunyuan VL: RoPE of text by each row's positions."""

import functools
from collections.abc import Callable
from typing import Any

from ....core.arrays import mx
from ..._shared.parts import view, with_parts
from .offsets import EMBEDDINGS, REFUSED, BatchCall

# The model's attribute for a prompt's position ids. Embedding an image sets it to those of the
# image, embedding text sets it to None.
POSITIONS = "_position_ids"

# A RoPE table that is too short is rebuilt; lengths are multiples of this.
_STEP = 256


def prepare(call: BatchCall) -> Any:
    """Run text through the model's code for the start of a prompt, with each row's position ids.

    That code reads the position ids cached on the model; the code for later tokens uses one table
    for all rows. Text has the same position on all axes, so both give the same result.

    Returns:
        ``REFUSED`` for a prompt that is not only text, or may be that of an image whose position
        ids are on the model.
    """
    decoder, offset, length = call.model.model, call.offset, call.length
    sections = decoder.layers[0].self_attn.xdrope_section
    # The position ids on the model may be those of the prompt that the embeddings are of.
    known, embeddings = getattr(call.model, POSITIONS, None), call.get(EMBEDDINGS)
    may_be_image = known is not None and embeddings is not None
    if not sections or (length > 1 and (not call.is_text() or may_be_image)):
        return REFUSED
    call.put_mask()
    own = mx.broadcast_to(offset.positions(length)[:, None], (call.rows, len(sections), length))
    layers = [extend_table(layer, offset + length) for layer in decoder.layers]
    call.put_model(model=with_parts(decoder, layers=layers), **{POSITIONS: own})
    # Caches that look empty.
    views = [view(one, offset=lambda cache: 0, _idx=lambda cache: 0) for one in call.get("cache")]
    call.put("cache", views)
    return None


def forget_computed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Factory of the model's call, which removes the position ids that it computes.

    It reads the attribute only at a prompt's first chunk: position ids of an image, or None to
    compute them. What it computes must not stay for the next prompt.
    """

    @functools.wraps(call)
    def call_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        is_set = getattr(model, POSITIONS, None) is not None
        try:
            return call(model, *args, **kwargs)
        finally:
            if not is_set and getattr(model, POSITIONS, None) is not None:
                model._position_ids = None

    return call_model


def extend_table(layer: Any, length: int) -> Any:
    embedding = layer.self_attn.rotary_emb

    def make_table(x: Any, seq_len: int) -> Any:
        return embedding(x, -(-max(length, seq_len) // _STEP) * _STEP)

    return with_parts(layer, self_attn=with_parts(layer.self_attn, rotary_emb=make_table))
