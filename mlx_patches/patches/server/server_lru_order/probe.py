"""Fills the server's prompt cache, uses its oldest entry and adds another."""

from typing import Any

from ....probes.kit import Result, Target, import_module, make_fed_cache, own_class_of

# Prompts that share all of the first entry, a part of it, and exactly its tokens.
_USES = {"a longer prompt": [1, 2, 3, 4], "another end": [1, 2, 9], "the same prompt": [1, 2, 3]}


def probe(target: Target) -> Result:
    """Red if the entry that was just used is evicted."""
    kind = own_class_of(target)
    caches = import_module("mlx_lm.models.cache")
    for name, prompt in _USES.items():
        prompts = kind(max_size=2)
        for key in ([1, 2, 3], [7, 8, 9]):
            insert(caches, prompts, key)
        found, _ = prompts.fetch_nearest_cache("model", prompt)
        assert found is not None
        if prompts.fetch_nearest_cache("model", [1, 2])[0] is None:
            continue  # this release's look-up removes the entry
        prompts.fetch_nearest_cache("model", prompt)
        insert(caches, prompts, [20, 21, 22])
        if prompts.fetch_nearest_cache("model", [1, 2, 3, 4])[0] is None:
            return Result(True, f"{name} uses an entry, which is evicted next")
    return Result(False, "the entry that was not used is evicted")


def insert(caches: Any, prompts: Any, key: list[int]) -> None:
    prompts.insert_cache("model", key, [make_fed_cache(caches.KVCache(), len(key))])
