"""Hunyuan VL: text is rotated by each row's own positions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..._shared.parts import view, with_parts
from ..._shared.row_calls import find_argument
from .offsets import EMBEDDINGS, REFUSED, RowOffset, is_text, put_argument, put_mask, put_model

# The model's attribute for a prompt's position ids. Embedding an image sets it to the image's, and
# embedding a text to None.
POSITIONS = "_position_ids"

# A table of rotations is made anew when it is too short; lengths are multiples of this.
_STEP = 256


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Run text through the model's code for the start of a prompt, with each row's position ids.

    That code reads the position ids cached on the model; the code for later tokens has one table
    for all rows. Text has the same position on all axes, so both rotate it alike.

    Returns:
        ``REFUSED`` for a prompt that is not text alone, or may be of an image whose position ids
        are on the model.
    """
    rows, length = shape
    model = bound.args[0]
    sections = model.model.layers[0].self_attn.xdrope_section
    if not sections or (length > 1 and (not is_text(bound) or has_positions(bound))):
        return REFUSED
    import mlx.core as mx

    put_mask(bound, length)
    own = mx.broadcast_to(offset.positions(length)[:, None], (rows, len(sections), length))
    layers = [with_table(layer, offset + length) for layer in model.model.layers]
    decoder = with_parts(model.model, layers=layers)
    put_model(bound, with_parts(model, model=decoder, **{POSITIONS: own}))
    # Caches that look as if they were fed nothing.
    caches = find_argument(bound, "cache")
    views = [view(one, offset=lambda cache: 0, _idx=lambda cache: 0) for one in caches]
    put_argument(bound, "cache", views)
    return None


def forget_computed(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model's call; position ids that it computes are not left for the next prompt.

    It reads those on the model at a prompt's first piece alone, where they are an image's, or None
    for it to compute them.
    """

    @functools.wraps(call)
    def replacement(model: Any, *args: Any, **kwargs: Any) -> Any:
        is_given = getattr(model, POSITIONS, None) is not None
        try:
            return call(model, *args, **kwargs)
        finally:
            if not is_given and getattr(model, POSITIONS, None) is not None:
                model._position_ids = None

    return replacement


def has_positions(bound: inspect.BoundArguments) -> bool:
    """Whether a prompt comes as embeddings, and the model has the position ids of some prompt."""
    known = getattr(bound.args[0], POSITIONS, None)
    return known is not None and find_argument(bound, EMBEDDINGS) is not None


def with_table(layer: Any, length: int) -> Any:
    """A layer whose tables of rotations have at least ``length`` positions."""
    embedding = layer.self_attn.rotary_emb

    def make_table(x: Any, seq_len: int) -> Any:
        return embedding(x, -(-max(length, seq_len) // _STEP) * _STEP)

    return with_parts(layer, self_attn=with_parts(layer.self_attn, rotary_emb=make_table))
