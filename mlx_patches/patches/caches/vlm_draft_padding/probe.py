"""Moves a row of a batch to the right, as a rejected draft does, and reads its padding."""

from ....probes.kit import NotApplicable, Result, Target, import_module, module_of, mx, require_own


def probe(target: Target) -> Result:
    """Red if Qwen3.5 still sees the padding that it had read before."""
    require_own(target)
    module, caches = module_of(target), import_module("mlx_vlm.models.cache")
    read = getattr(module, "_qwen3_5_left_padding_info", None)
    if read is None:
        raise NotApplicable("Qwen3.5 keeps no padding in this release")

    def read_padding() -> list[int]:
        if target.name == read.__name__:
            return list(read(cache)[0])
        module._create_qwen3_5_attention_mask(mx.zeros((2, 1, 8)), cache)
        return list(getattr(cache, "_qwen3_5_decode_left_padding", (0, 0)))

    cache = caches.BatchKVCache([0, 0])
    keys = mx.zeros((2, 1, 4, 8))
    cache.update_and_fetch(keys, keys)
    read_padding()
    cache.prepare(right_padding=[0, 2])
    cache.finalize()
    seen = read_padding()
    return Result(seen != [0, 2], f"the rows' padding is [0, 2], Qwen3.5 sees {seen}")
