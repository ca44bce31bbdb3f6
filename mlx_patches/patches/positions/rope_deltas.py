"""Rows of a batch are rotated to another row's positions: M-RoPE models keep one rope delta.

Why
    An image takes fewer positions than tokens. How many, the rope delta, is kept on the
    language model, where the next request's call replaces it; the offset of a batch's first row
    stands for all; and the positions of a left-padded prompt are counted from its padding.
How
    A row's delta rides on the batch's first cache. A call with a batch's caches gets explicit
    position ids, each row's own offset and delta, through the model's own argument. A row alone
    that has a delta gets the same. What the model computes for a prompt with images is kept for
    that prompt, and goes to the row that is fed its tokens, whichever prompts came in between.
    Positions that a host hands over are left alone.
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

from ...core.patch import Patch, Target
from ..caches import row_record
from . import prompts

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
# With these a model computes a prompt's positions itself.
GRIDS = ("image_grid_thw", "video_grid_thw")


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
        given, rows, own = kwargs.get("rope_deltas"), inputs.shape[0], None
        if kwargs.get("position_ids") is None:
            computes = any(kwargs.get(name) is not None for name in GRIDS)
            own = of_prompts(model, cache[0], timed.offset, inputs, computes)
            if own is None:
                own = positions(model, cache[0], timed.offset, inputs.shape)
            if own is not None:
                kwargs["position_ids"] = own
                given = row_record.deltas_of(cache[0], rows)
        out = call(model, inputs, *args, **kwargs)
        if given is None and inputs.shape[1] > 1:
            given = kept_on(model)
        elif own is not None and kept_on(model) is not None:
            model._rope_deltas = given  # it computed none: an engine would read another batch's
        remember(cache[0], given, rows)
        return out

    return replacement


def of_prompts(model: Any, carrier: Any, offset: Any, ids: Any, computes: bool = False) -> Any:
    """Position ids (3, rows, length) of rows with images in their prompts, or beside such a row.

    The cache carries each row's delta afterwards. None where no row is known to have an image,
    and the model does not hold another prompt's positions either, or ``computes`` new ones.
    """
    kept = prompts.prompts(model)
    rows, length = ids.shape[:2]
    offsets = offset.tolist() if getattr(offset, "ndim", 0) else [int(offset)] * rows
    if not kept or length < 2 or len(offsets) != rows:
        return None
    fed = prompts.fed(carrier, offsets, ids)
    chosen = prompts.found(kept, fed)
    foreign = not computes and all(fed) and getattr(model, "_position_ids", None) is kept[-1].whole
    if not any(chosen) and not foreign:
        return None
    import mlx.core as mx

    deltas = row_record.deltas_of(carrier, rows)
    places = []
    for row, (prompt, start) in enumerate(zip(chosen, offsets, strict=True)):
        text = counted(mx.array([start]), deltas[row : row + 1], (1, length))
        if prompt is None:
            places.append(text)
            continue
        end = start + length
        own = prompt.between(max(0, start), end)
        places.append(mx.concatenate([text[:, :, : length - own.shape[-1]], own], axis=-1))
        deltas[row] = prompt.delta(end)[0]
    row_record.keep(carrier, deltas)
    return mx.concatenate(places, axis=1)


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
    deltas = row_record.deltas_of(carrier)
    if not getattr(offset, "ndim", 0):
        if deltas is None or length > 1:
            return None
        offset = mx.array([offset] * rows)
    elif deltas is None and length > 1 and parked(model, rows, length):
        return None
    return counted(offset, 0 if deltas is None else deltas, shape)


def counted(offset: Any, deltas: Any, shape: tuple[int, ...]) -> Any:
    """Position ids (3, rows, length) from the rows' offsets on."""
    import mlx.core as mx

    rows, length = shape[:2]
    # Padding has no position, and is not looked at.
    own = mx.maximum(offset[:, None] + deltas + mx.arange(length), 0)
    return mx.broadcast_to(own[None], (3, rows, length))


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

    if deltas is not None and deltas is not row_record.deltas_of(carrier):
        deltas = mx.array(deltas).reshape(-1, 1)
        if deltas.shape[0] == rows:
            row_record.keep(carrier, deltas)


PATCH = Patch(
    id="rope-deltas",
    summary="rows of a batch are rotated to another row's positions",
    targets=(
        *(
            Target("mlx-vlm", f"mlx_vlm.models.{family}.language", "LanguageModel.__call__", by_row)
            for family in FAMILIES
        ),
        *(
            Target(
                "mlx-vlm",
                f"mlx_vlm.models.{family}.language",
                "LanguageModel.get_rope_index",
                prompts.noting,
                ("LanguageModel.get_rope_index", "LanguageModel.__call__"),
            )
            for family in FAMILIES
        ),
        *row_record.TARGETS,
    ),
    probe="mlx_patches.probes.rope_deltas:probe",
    module=__name__,
)
