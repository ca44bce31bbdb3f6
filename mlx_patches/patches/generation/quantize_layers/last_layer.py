"""``kv_bits`` quantizes the last layer of a row alone, but not in a batch.

Why
    The last layer of a deep model is sensitive to quantized keys and values. mlx-vlm keeps it in
    floats in its batches and with TurboQuant, and documents the same for a row alone; but the
    uniform branch of ``maybe_quantize_kv_cache`` quantizes it. The row then produces other logits
    than in a batch, and has another kind of cache when it joins one.
How
    For more than two layers, the function gets None in place of the last layer's cache. It skips
    what it cannot quantize.
Upstream
    One of the two copies of the function in mlx-vlm 0.6.10 skips the layer; 0.7.10 does not.
    Releases before 0.6.0 are not patched.
Retire when
    The release skips the layer.

Optional: with ``kv_bits``, a row alone produces other text than before, as it does in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def quantize(
    original: Callable[..., None],
    prompt_cache: list[Any],
    quantized_kv_start: int,
    kv_group_size: int,
    kv_bits: float | None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Quantize the caches of all layers except those that stay in floats."""
    if kv_bits is None:
        return
    kept = spared(len(prompt_cache))
    layers = [*prompt_cache[:kept], *[None] * (len(prompt_cache) - kept)]
    original(layers, quantized_kv_start, kv_group_size, kv_bits, *args, **kwargs)
    prompt_cache[:kept] = layers[:kept]


def spared(count: int) -> int:
    """The index of the first of ``count`` layers that stays in floats."""
    return count - 1 if count > 2 else count


PATCH = Patch(
    id="vlm-quantize-last-layer",
    severity="feature",
    summary=(
        "mlx-vlm: kv_bits also quantizes the sensitive last layer, but only for single requests"
    ),
    targets=tuple(
        Target("mlx-vlm", f"mlx_vlm.generate.{module}", "maybe_quantize_kv_cache", around(quantize))
        for module in ("common", "dispatch")
    ),
    probe=".probe:last_layer",
    optional=True,
)
