"""mlx-lm and mlx-vlm: kv_bits crashes mid-generation on sliding-window models.

Why: ``maybe_quantize_kv_cache`` quantizes every cache that has ``to_quantized``. Caches with a
    sliding window have this method, but it raises NotImplementedError, in the middle of a
    generation. mlx-vlm's TurboQuant branch skips these layers.
How: ``to_quantized`` of a rotating cache returns the cache itself: the layer stays in floats. Its
    memory is bounded by its window.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: The release skips these layers, or quantizes them.
"""

from typing import Any

from ....core.verbs import Function, Patch, in_caches, wrap


def keep_floats(quantize: Function, cache: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return quantize(cache, *args, **kwargs)
    except NotImplementedError:
        return cache


PATCH = Patch(
    id="quantize-rotating",
    severity="crash",
    every_model=True,
    targets=wrap(
        in_caches("RotatingKVCache.to_quantized BatchRotatingKVCache.to_quantized"), keep_floats
    ),
    probe=".probe:probe_rotating",
)
