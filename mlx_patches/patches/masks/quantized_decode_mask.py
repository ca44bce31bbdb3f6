"""A decode step of Qwen 3.5 over quantized keys attends to the batch's padding.

Why
    For a decode step over left padding the decoder hands its layers a word in place of a mask,
    and attention then cuts the padding off each row's keys. Quantized keys cannot be cut so:
    attention falls back to the release's own, with no mask at all.
How
    The decoder asks a quantized cache for its mask, as it does for a prompt.
Upstream
    Live in mlx-vlm 0.7.10.
Retire when
    The decoder makes a mask for quantized caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def masked(create: Callable[[Any, Any], Any], h: Any, cache: Any) -> Any:
    """The mask for ``h`` (rows, length, width) over the keys of a cache."""
    if not is_quantized(cache):
        return create(h, cache)
    return cache.make_mask(h.shape[1], return_array=False, window_size=None)


def is_quantized(cache: Any) -> bool:
    """Whether attention over the cache is the release's own, for quantized keys."""
    return hasattr(cache, "bits")


PATCH = Patch(
    id="quantized-decode-mask",
    summary="a decode step of Qwen 3.5 over quantized keys attends to the batch's padding",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.qwen3_5.language",
            "_create_qwen3_5_attention_mask",
            around(masked),
        ),
    ),
    probe="mlx_patches.probes.quantized_decode_mask:probe",
    module=__name__,
)
