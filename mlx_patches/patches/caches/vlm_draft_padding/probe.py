"""Moves a row of a batch to the right, as a rejected draft does, and reads its padding."""

from ....probes.kit import NotApplicable, Result, Target, import_module, module_of, mx


def probe(target: Target) -> Result:
    """Red if Qwen3.5 still sees the padding that it had read before."""
    language = import_module("mlx_vlm.models.qwen3_5.language")
    read = getattr(language, "_qwen3_5_left_padding_info", None)
    if read is None:
        raise NotApplicable("Qwen3.5 keeps no padding in this release")
    cache = module_of(target).BatchKVCache([0, 0])
    keys = mx.zeros((2, 1, 4, 8))
    cache.update_and_fetch(keys, keys)
    read(cache)
    cache.prepare(right_padding=[0, 2])
    cache.finalize()
    seen = list(read(cache)[0])
    return Result(seen != [0, 2], f"the rows' padding is [0, 2], Qwen3.5 sees {seen}")
