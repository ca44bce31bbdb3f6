"""mlx-vlm: kv_bits also quantizes the sensitive last layer, but only for single requests.

Why: The last layer of a deep model is sensitive to quantized keys and values. mlx-vlm keeps it in
    floats in batches and with TurboQuant, and documents the same for single requests; but the
    uniform branch of ``maybe_quantize_kv_cache`` quantizes it. A single request then produces
    different logits than in a batch, and joins one with the wrong kind of cache.
How: For more than two layers, the function receives None in place of the last layer's cache. It
    skips what it cannot quantize.
Upstream: One of the two copies of the function in mlx-vlm 0.6.10 skips the layer; 0.7.10 does not.
    Releases before 0.6.0 are not patched.
Retire when: The release skips the layer.

Optional: with ``kv_bits``, the output of single requests changes to that of a batch.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap


def spare_last_layer(
    quantize: Function,
    prompt_cache: list[Any],
    quantized_kv_start: int,
    kv_group_size: int,
    kv_bits: float | None,
    *args: Any,
    **kwargs: Any,
) -> None:
    if kv_bits is None:
        return
    count = count_quantized(len(prompt_cache))
    layers = [*prompt_cache[:count], *[None] * (len(prompt_cache) - count)]
    quantize(layers, quantized_kv_start, kv_group_size, kv_bits, *args, **kwargs)
    prompt_cache[:count] = layers[:count]


def count_quantized(count: int) -> int:
    """How many of ``count`` layers are quantized; the rest stays in floats."""
    return count - 1 if count > 2 else count


PATCH = Patch(
    id="vlm-quantize-last-layer",
    severity="feature",
    targets=wrap(
        [f"mlx_vlm.generate.{module}:maybe_quantize_kv_cache" for module in ("common", "dispatch")],
        spare_last_layer,
    ),
    probe=".probe:probe_last_layer",
    optional=True,
)
