"""Rows of a batch are rotated to another row's positions: M-RoPE models keep one rope delta.

Why
    An image takes fewer positions than tokens. How many, the rope delta, is kept on the
    language model, where the next request's call replaces it; the offset of a batch's first row
    stands for all; and the positions of a left-padded prompt are counted from its padding.
How
    A row's delta rides on the batch's first cache. A call with a batch's caches gets explicit
    position ids, each row's own offset and delta, through the model's own argument. A row alone
    that has a delta gets the same. Positions that a host hands over are left alone.
Upstream
    mlx-vlm 0.5.0 takes ``rope_deltas`` and 0.6.5 hands each row's positions to the Qwen models;
    the glm4v and PaddleOCR models still keep them in 0.7.10.
Retire when
    No supported release keeps positions on the model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..._patch import Patch, Target
from . import _row_deltas

FAMILIES = (
    "glm4v",
    "glm4v_moe",
    "glm_ocr",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_omni_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
)


def by_row(call: Callable[..., Any]) -> Callable[..., Any]:
    """The language model's call, with the positions of each row."""
    # Behind the model and the token ids.
    place = list(inspect.signature(call).parameters).index("cache") - 2

    @functools.wraps(call)
    def replacement(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        held = kwargs.get("cache", args[place] if len(args) > place else None)
        cache: Any = held or ()
        timed = next((layer for layer in cache if hasattr(layer, "offset")), None)
        if timed is None:
            return call(model, inputs, *args, **kwargs)
        given, rows = kwargs.get("rope_deltas"), inputs.shape[0]
        if kwargs.get("position_ids") is None:
            own = positions(model, cache[0], timed.offset, inputs.shape)
            if own is not None:
                kwargs["position_ids"] = own
                given = _row_deltas.deltas_of(cache[0], rows)
        out = call(model, inputs, *args, **kwargs)
        if given is None and inputs.shape[1] > 1:
            given = kept_on(model)
        remember(cache[0], given, rows)
        return out

    return replacement


def positions(model: Any, carrier: Any, offset: Any, shape: tuple[int, ...]) -> Any:
    """Position ids (3, rows, length) for the next tokens; None where the model knows better.

    Args:
        model: the language model.
        carrier: the cache that carries the rows' deltas.
        offset: of the cache: a number, or an array with one for each row.
        shape: of the token ids.
    """
    import mlx.core as mx

    rows, length = shape[:2]
    deltas = _row_deltas.deltas_of(carrier)
    if not getattr(offset, "ndim", 0):
        if deltas is None or length > 1:
            return None
        offset = mx.array([offset] * rows)
    elif deltas is None and length > 1 and parked(model, rows, length):
        return None
    start = offset[:, None] + (0 if deltas is None else deltas)
    # Padding has no position, and is not looked at.
    return mx.broadcast_to(mx.maximum(start + mx.arange(length), 0)[None], (3, rows, length))


def parked(model: Any, rows: int, length: int) -> bool:
    """Whether the model holds the positions of just these rows' prompts."""
    held = getattr(model, "_position_ids", None)
    return held is not None and held.shape[-2] == rows and held.shape[-1] >= length


def kept_on(model: Any) -> Any:
    """The rope deltas that the model holds."""
    return getattr(model, "_rope_deltas", None)


def remember(carrier: Any, deltas: Any, rows: int) -> None:
    """Have a cache carry the deltas of its rows, where there is one for each."""
    import mlx.core as mx

    if deltas is not None and deltas is not _row_deltas.deltas_of(carrier):
        deltas = mx.array(deltas).reshape(-1, 1)
        if deltas.shape[0] == rows:
            _row_deltas.keep(carrier, deltas)


PATCH = Patch(
    id="rope-deltas",
    summary="rows of a batch are rotated to another row's positions",
    targets=(
        *(
            Target("mlx-vlm", f"mlx_vlm.models.{family}.language", "LanguageModel.__call__", by_row)
            for family in FAMILIES
        ),
        *_row_deltas.TARGETS,
    ),
    probe="mlx_patches.probes.rope_deltas:probe",
    module=__name__,
)
