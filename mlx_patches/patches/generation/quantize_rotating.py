"""Generation with ``kv_bits`` dies on a model with sliding windows.

Why
    ``maybe_quantize_kv_cache`` quantizes each layer's cache that has ``to_quantized``. Those
    with a sliding window have it and raise NotImplementedError, in the middle of a generation.
    mlx-vlm's TurboQuant branch passes over these layers.
How
    ``to_quantized`` of a cache that rotates gives back the cache: the layer stays in floats,
    and goes on. Its memory is bounded by its window.
Upstream
    Live in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The release passes over these layers, or quantizes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def quantized(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """What the release makes of the cache, or the cache itself where it makes nothing."""
    try:
        return original(cache, *args, **kwargs)
    except NotImplementedError:
        return cache


def _factory(original: Any) -> Any:
    return around(quantized)(original)


PATCH = Patch(
    id="quantize-rotating",
    summary="kv_bits with sliding-window layers raises NotImplementedError mid-generation",
    targets=tuple(
        Target(distribution, module, f"{name}.to_quantized", _factory)
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for name in ("RotatingKVCache", "BatchRotatingKVCache")
    ),
    probe="mlx_patches.probes.quantize_layers:rotating",
    module=__name__,
)
