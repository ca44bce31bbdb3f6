"""Looks up every prefix of a prompt whose chunked cache the server's prompt cache holds."""

from typing import Any

from ....probes.kit import Result, Target, import_module, mx, own_class_of, require_names

_MODEL = "tiny"
_CHUNK = 8


def probe(target: Target) -> Result:
    """Red if a hit holds wrong tokens, or lacks tokens of the current chunk."""
    caches = import_module("mlx_lm.models.cache")
    prompts_class = own_class_of(target)
    require_names(caches.ChunkedKVCache(_CHUNK), "start_position")
    hits = 0
    for length in (30, 32):  # one ends within a chunk, the other at the end of one
        known = list(range(length))
        for wanted in range(2, length):
            prompts = prompts_class()
            prompts.insert_cache(_MODEL, known, [feed(caches.ChunkedKVCache(_CHUNK), length)])
            found, rest = prompts.fetch_nearest_cache(_MODEL, known[:wanted])
            if found is None:
                continue
            hits += 1
            problem = describe_loss(found[0], wanted - len(rest))
            if problem:
                return Result(True, f"lookup of {wanted} of {length} tokens: {problem}")
    return Result(False, f"{hits} hits hold all tokens that the next one sees")


def feed(cache: Any, length: int) -> Any:
    cache.step = _CHUNK
    for start in range(0, length, _CHUNK):
        cache.maybe_trim_front()
        keys = mx.arange(float(start), min(start + _CHUNK, length)).reshape(1, 1, -1, 1)
        cache.update_and_fetch(keys, keys)
    cache.maybe_trim_front()
    return cache


def describe_loss(cache: Any, held: int) -> str:
    """Describe what a hit of ``held`` tokens lacks for the next token; empty if nothing."""
    begin = held // _CHUNK * _CHUNK
    tokens = cache.keys.reshape(-1).tolist()[begin - cache.start_position :][: held - begin]
    if cache.start_position > begin or cache.offset != held:
        return f"a hit of {held} tokens holds positions {cache.start_position} to {cache.offset}"
    return "" if tokens == list(range(begin, held)) else f"the chunk holds {tokens}"
