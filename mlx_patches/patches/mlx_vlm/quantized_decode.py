"""Qwen3.5 attends to a quantized batch's left padding as it decodes.

Why
    A decode step of a left-padded batch gets the word ``left_padded_decode`` for a mask, and
    attention that leaves out each row's padding. That attention takes no quantized caches; the
    step then goes to the common one without any mask, and the shorter rows read their padding.
How
    A quantized cache makes the mask of its own padding, as for a prompt.
Upstream
    Live in mlx-vlm 0.7.10.
Retire when
    The left-padded decode takes quantized caches, or leaves them alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..._patch import Patch, Target

MODULE = "mlx_vlm.models.qwen3_5.language"


def masked(make: Callable[..., Any]) -> Callable[..., Any]:
    """The mask of a step, from the cache where it is quantized."""
    common = make.__globals__["create_attention_mask"]

    @functools.wraps(make)
    def replacement(h: Any, cache: Any) -> Any:
        mask = make(h, cache)
        if isinstance(mask, str) and mask == "left_padded_decode" and is_quantized(cache):
            del cache._qwen3_5_decode_left_padding
            return common(h, cache)
        return mask

    return replacement


def is_quantized(cache: Any) -> bool:
    """Whether the left-padded attention leaves a cache to the common one."""
    return hasattr(cache, "bits")


PATCH = Patch(
    id="quantized-decode",
    summary="Qwen3.5 attends to a quantized batch's left padding as it decodes",
    targets=(
        Target(
            "mlx-vlm",
            MODULE,
            "_create_qwen3_5_attention_mask",
            masked,
            ("_create_qwen3_5_attention_mask", "_qwen3_5_left_padded_attention"),
        ),
    ),
    probe="mlx_patches.probes.quantized_decode:probe",
    module=__name__,
)
