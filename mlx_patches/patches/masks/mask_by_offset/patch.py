"""Qwen3-VL, Qwen3.5 and Qwen3-Omni in a batch: the newest tokens are cut from the mask.

Why: These models' attention does ``mask = mask[..., : L + max(cache.offset)]``. A batch whose rows
    were joined or right-padded holds columns that no row's offset counts, so the mask loses its
    newest columns: it cannot be broadcast, or hides a row's last tokens.
How: If position ids are passed, the attention uses the offset for this cut only. It gets a view of
    the cache whose ``offset`` is an int, the mask's number of columns, so the cut keeps all of
    them. It then reads nothing from the device to find the longest row.
Upstream: mlx-vlm 0.7.x for qwen3_vl; not fixed in 0.7.10 for the others.
Retire when: No supported release cuts masks by offsets.
"""

from typing import Any

from ....core.verbs import Patch, argument, vlm_family
from ..._shared.parts import with_offset


def replace_offset(cache: Any, mask: Any, position_ids: Any) -> Any:
    """A batch's cache whose offset is the number of the mask's columns."""
    is_batch = hasattr(getattr(cache, "offset", None), "ndim")
    # Without position ids the attention computes them from the offset.
    if is_batch and position_ids is not None:
        return with_offset(cache, count_columns(mask))
    return cache


def has_mask(mask: Any) -> bool:
    return hasattr(mask, "dtype")


def count_columns(mask: Any) -> int:
    return int(mask.shape[-1])


PATCH = Patch(
    id="mask-by-offset",
    targets=argument(
        (
            *vlm_family("qwen3_5", "Qwen3_5Attention.__call__"),
            *vlm_family("qwen3_omni_moe qwen3_vl qwen3_vl_moe", "Attention.__call__"),
        ),
        "cache",
        replace_offset,
        when=has_mask,
    ),
)
