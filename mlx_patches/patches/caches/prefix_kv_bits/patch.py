"""mlx-vlm with kv_bits: a prefix-cache hit cannot join the running batch.

Why: The caches of a batch with hits are quantized differently from those of other batches. In exact
    mode they stay in floats. In block mode mlx-vlm 0.6.5 also quantizes the last layer, and
    TurboQuant's layers by the other scheme; earlier releases quantize nothing. The batches cannot
    be joined, and all requests fail.
How: The release builds the batch in floats. The layers that other batches quantize are then copied
    into quantized caches.
Upstream: Fixed in mlx-vlm 0.6.6, in the same way.
Retire when: No supported release is older than mlx-vlm 0.6.6.
"""

import inspect
import sys
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.quantized import holds_quantized
from ..._shared.targets import vlm_generators


def quantize_hits(build: Function, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """Build a batch of prompts with hits, its caches quantized like those of other batches."""
    bits, generator.kv_bits = generator.kv_bits, None
    try:
        batch = build(generator, *args, **kwargs)
    finally:
        generator.kv_bits = bits
    if batch is not None:
        empty = make_empty_caches(generator, batch._apc_meta)
        caches = zip(batch.prompt_cache, empty, strict=True)
        batch.prompt_cache = [quantize_layer(*pair, batch) for pair in caches]
    return batch


def make_empty_caches(generator: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """The caches that the release makes for prompts without hits, padded to the longest prefix."""
    make = sys.modules[type(generator).__module__]._make_cache
    longest = max(row["prefix_len"] for row in rows)
    known = vars(generator) | {
        "left_padding": [longest - row["prefix_len"] for row in rows],
        "prefill_length": max(len(row["full_input_ids"]) for row in rows),
    }
    parameters = inspect.signature(make).parameters
    return list(make(**{name: known[name] for name in parameters if name in known}))


def quantize_layer(cache: Any, empty: Any, batch: Any) -> Any:
    """A layer's cache, quantized if ``empty``, the same layer of another batch, is."""
    if inner := getattr(empty, "caches", None):
        pairs = zip(cache.caches, inner, strict=True)
        cache.caches = tuple(quantize_layer(*pair, batch) for pair in pairs)
    if not holds_quantized(empty) or holds_quantized(cache):
        return cache
    if cache.keys is not None:
        empty.update_and_fetch(*(held[..., : cache._idx, :] for held in (cache.keys, cache.values)))
    if any(batch._right_pad_per_row):
        empty.prepare(right_padding=batch._right_pad_per_row, lengths=batch._suffix_lens)
    return empty


def has_kv_bits(generator: Any, /) -> bool:
    return generator.kv_bits is not None


PATCH = Patch(
    id="vlm-prefix-kv-bits",
    formerly="prefix-kv-bits",
    severity="crash",
    targets=wrap(
        vlm_generators("BatchGenerator._build_mixed_prompt_batch"),
        quantize_hits,
        fingerprint_of=("BatchGenerator._build_mixed_prompt_batch", "_make_cache"),
        when=has_kv_bits,
    ),
)
