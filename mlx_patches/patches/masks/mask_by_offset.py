"""A batch's mask is cut to the longest row's length, where the cache holds more columns.

Why
    These models' attention does ``mask = mask[..., : L + max(cache.offset)]``. A batch whose
    rows were joined or right-padded holds columns that no row's offset counts, so the mask
    loses its newest columns: it cannot be broadcast, or hides a row's last tokens.
How
    The attention gets a batch's mask as one that a cut from its start leaves whole.
Upstream
    mlx-vlm 0.7.x for qwen3_vl; not fixed in 0.7.10 for the others.
Retire when
    No supported release cuts masks by offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around
from .mask_after_update import whole

_ATTENTION = {
    "qwen3_5": "Qwen3_5Attention",
    "qwen3_omni_moe": "Attention",
    "qwen3_vl": "Attention",
    "qwen3_vl_moe": "Attention",
}


def attended(
    call: Callable[..., Any],
    attention: Any,
    x: Any,
    mask: Any = None,
    cache: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The attention's output for ``x`` (rows, length, width)."""
    offset = getattr(cache, "offset", None)
    if mask is not None and hasattr(offset, "ndim"):
        mask = uncut(mask)
    return call(attention, x, mask, cache, *args, **kwargs)


def uncut(mask: Any) -> Any:
    """A mask that stays whole."""
    return whole(mask)


PATCH = Patch(
    id="mask-by-offset",
    summary="a batch's mask is cut to the longest row's length, and loses its newest columns",
    targets=tuple(
        Target(
            "mlx-vlm",
            f"mlx_vlm.models.{family}.language",
            f"{attention}.__call__",
            around(attended),
        )
        for family, attention in _ATTENTION.items()
    ),
    probe="mlx_patches.probes.mask_by_offset:probe",
    module=__name__,
)
