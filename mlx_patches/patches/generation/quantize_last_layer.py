"""``kv_bits`` quantizes a layer of a row alone that a batch keeps in floats.

Why
    The last layer of a deep model is sensitive to quantized keys and values. mlx-vlm leaves it
    in floats in its batches and with TurboQuant, and says that a row alone must get the same;
    the uniform branch of ``maybe_quantize_kv_cache`` quantizes it. The row then says something
    else than in a batch, and meets another kind of cache when it joins one.
How
    With more than two layers, the function sees None in the place of the last layer's cache.
    It passes over what it cannot quantize.
Upstream
    One of the two copies of the function in mlx-vlm 0.6.10 passes over the layer; 0.7.10 does
    not. Releases before 0.6.0 are not patched.
Retire when
    The release passes over the layer.

Optional: what a model says alone with ``kv_bits`` changes, to what it says in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def quantize(
    original: Callable[..., None],
    prompt_cache: list[Any],
    quantized_kv_start: int,
    kv_group_size: int,
    kv_bits: float | None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Quantize all layers but those that are spared."""
    if kv_bits is None:
        return
    kept = spared(len(prompt_cache))
    layers = [*prompt_cache[:kept], *[None] * (len(prompt_cache) - kept)]
    original(layers, quantized_kv_start, kv_group_size, kv_bits, *args, **kwargs)
    prompt_cache[:kept] = layers[:kept]


def spared(count: int) -> int:
    """From which of so many layers on they stay in floats."""
    return count - 1 if count > 2 else count


PATCH = Patch(
    id="vlm-quantize-last-layer",
    summary="kv_bits quantizes the sensitive last layer of a row alone, but not in a batch",
    targets=tuple(
        Target("mlx-vlm", f"mlx_vlm.generate.{module}", "maybe_quantize_kv_cache", around(quantize))
        for module in ("common", "dispatch")
    ),
    probe="mlx_patches.probes.quantize_layers:last_layer",
    module=__name__,
    optional=True,
)
