"""Builds a batch of prompts with and without a prefix, in a generator with ``kv_bits``."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    import_module,
    make_bare_generator,
    make_prefix_hits,
    mx,
    own_module,
    with_patches,
)

LAYERS = 3
WIDTH = 64
QUANTIZED = {"kv_bits": 8, "kv_group_size": WIDTH, "kv_quant_scheme": "uniform"}
QUANTIZED |= {"quantized_kv_start": 0}
# Each row's prefix and the rest of its prompt.
ROWS = ((5, 1), (3, 2), (0, 4))


def probe(target: Target) -> Result:
    """Red if a layer is quantized differently from other batches, or has lost the prefix."""
    module = own_module(target)
    generator = make_generator(module)
    picks = make_prefixes()
    # Up to 0.6.4 a quantized batch accepts no right-padded prompts.
    with with_patches(("batch-quantized",)):
        wrong = compare_layers(build_batch(generator, picks), generator, picks)
    return Result(bool(wrong), "; ".join(wrong) or "the caches match those of other batches")


def make_generator(module: Any, **options: Any) -> Any:
    state: dict[str, Any] = {
        "model": SimpleNamespace(layers=[None] * LAYERS),
        "apc_manager": SimpleNamespace(release=lambda blocks: None),
        "_apc_extra_hash": lambda *args: 0,
        "apc_mode": "block",
        "prefill_step_size": None,
    }
    return make_bare_generator(module, **state | QUANTIZED | options)


def make_prefixes() -> list[dict[str, Any] | None]:
    return make_prefix_hits([((2, WIDTH),) * 2] * LAYERS, [length for length, _ in ROWS])


def build_batch(generator: Any, picks: list[dict[str, Any] | None]) -> Any:
    generator._apc_pick_for = lambda sequence: picks[sequence[0]]
    return generator._build_mixed_prompt_batch(
        [
            (row, list(range(total)), 4, {"inputs_embeds": mx.zeros((1, total, 2))}, None, None)
            for row, total in enumerate(map(sum, ROWS))
        ]
    )


def compare_layers(batch: Any, generator: Any, picks: list[dict[str, Any] | None]) -> list[str]:
    """One line per layer whose class or keys differ from those of other batches."""
    make = import_module(type(generator).__module__)._make_cache
    names = ("kv_bits", "kv_group_size", "kv_quant_scheme")
    options = {name: vars(generator)[name] for name in names}
    found = []
    for layer, other in enumerate(make(generator.model, [0], **options)):
        cache = batch.prompt_cache[layer]
        if type(cache) is not type(other):
            found.append(f"layer {layer}: {type(cache).__name__}, not {type(other).__name__}")
            continue
        if hasattr(cache, "seed"):
            continue  # TurboQuant's keys are not close to the original ones
        keys = cache.keys
        if hasattr(cache, "bits"):
            keys = mx.dequantize(*keys, group_size=cache.group_size, bits=cache.bits)
        for row, pick in enumerate(picks):
            if pick is not None:
                want = pick["matched_blocks"][0].keys[layer]
                start = cache._idx - want.shape[2]
                if not mx.allclose(keys[row, :, start : cache._idx], want[0], atol=0.05):
                    found.append(f"layer {layer}, row {row}: keys differ")
    return found
