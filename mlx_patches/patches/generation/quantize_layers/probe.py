"""Quantizes a rotating cache, and the caches of all layers of a model."""

from ....probes.kit import (
    Result,
    Target,
    import_module,
    make_keys_and_values,
    own_class_of,
    require_names,
    require_own,
)


def probe_rotating(target: Target) -> Result:
    """Red if a cache with a sliding window raises, or becomes a different float cache."""
    kind = own_class_of(target)
    require_names(kind, "to_quantized")
    batch = kind.__name__.startswith("Batch")
    cache = kind(8, [0, 0]) if batch else kind(8)
    for tokens in (4, 1, 1, 1, 1, 1):  # before and after it wraps
        cache.update_and_fetch(*make_keys_and_values(2 if batch else 1, tokens))
        try:
            after = cache.to_quantized(group_size=64, bits=8)
        except NotImplementedError as error:
            return Result(True, f"NotImplementedError: {error}")
        if after is not cache and not hasattr(after, "bits"):
            return Result(True, f"becomes a {type(after).__name__}")
    return Result(False, "the cache stays, or is quantized")


def probe_last_layer(target: Target) -> Result:
    """Red if the last of more than two layers is quantized."""
    quantize = require_own(target)
    kind = import_module("mlx_vlm.models.cache").KVCache
    for count in (1, 2, 3, 5):
        layers = [kind() for _ in range(count)]
        for layer in layers:
            layer.update_and_fetch(*make_keys_and_values(1, 4))
        quantize(layers, quantized_kv_start=0, kv_group_size=64, kv_bits=8)
        kept = [index for index, layer in enumerate(layers) if type(layer) is kind]
        if kept != ([count - 1] if count > 2 else []):
            return Result(True, f"of {count} layers, these stay in floats: {kept}")
    return Result(False, "the last of more than two layers stays in floats")
