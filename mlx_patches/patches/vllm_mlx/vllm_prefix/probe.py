"""Runs prompts that share a prefix through vllm-mlx's scheduler, with and without its cache."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, require
from ....probes.vllm_scheduler import (
    MEMORY,
    Server,
    build_llama,
    build_sliding_llama,
    build_windowed_llama,
)

_PREFIX = [1 + (7 * i) % 90 for i in range(600)]
_CUT = [[*_PREFIX, 91], [*_PREFIX, 92, 93]]
_MORE = [[*_PREFIX, *more] for more in ([91], [91], [], [92, 93], [91])]
LEGACY = {"use_memory_aware_cache": False}


def probe(target: Target) -> Result:
    """Red if an answer depends on earlier requests."""
    if target.name == "MemoryAwarePrefixCache.fetch":
        return compare_answers(build_llama(), _MORE)
    require(target)
    if target.name == "_trim_cache_offset":
        # A prefix within the window, then one past it, followed by fewer tokens than the window.
        short = compare_answers(
            build_sliding_llama(), [[*_PREFIX[:3], 91], [*_PREFIX[:2], *_PREFIX[:20]]]
        )
        return short if short.red else compare_answers(build_sliding_llama(), _CUT)
    # Rotating layers are never quantized, so the answers must be equal.
    model = build_windowed_llama()
    return compare_answers(model, _CUT, kv_cache_quantization=True, kv_cache_min_quantize_tokens=1)


def probe_legacy(target: Target) -> Result:
    """The same for the older prefix cache."""
    hit = compare_answers(build_llama(), _MORE, **LEGACY)
    if hit.red:
        return hit
    # The first layer can be trimmed; the second, a window that has wrapped, cannot.
    model = build_llama(["full_attention", "sliding_attention"])
    return compare_answers(model, [_PREFIX[:20], _PREFIX[:18]], **LEGACY)


def compare_answers(model: Any, prompts: Sequence[Sequence[int]], **config: Any) -> Result:
    """Red if an answer differs from that of a server without a prefix cache."""
    server = Server(model, **{**MEMORY, **config})
    plain = Server(model, enable_prefix_cache=False)
    for index, prompt in enumerate(prompts):
        answer, wanted = server.answer(prompt), plain.answer(prompt)
        if answer != wanted:
            return Result(True, f"request {index}: {answer}, without a prefix cache {wanted}")
    return Result(False, "every answer equals the one without a prefix cache")
