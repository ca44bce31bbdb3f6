"""Saves and restores a list of caches as a prompt cache, and compares their contents."""

from ....probes.kit import Result, Target, make_fed_cache, module_of, own_class_of, require_names

_LENGTH = 3


def probe(target: Target) -> Result:
    """Red if the restored list differs. A restore that raises is red, too."""
    kind = own_class_of(target)
    caches = module_of(target)
    require_names(caches.KVCache, "meta_state", "from_state")
    saved = kind(
        make_fed_cache(caches.KVCache(), _LENGTH), make_fed_cache(caches.KVCache(), _LENGTH + 1)
    )
    restored = kind.from_state(saved.state, saved.meta_state)
    before, after = (
        [(inner.offset, inner.state[0].tolist()) for inner in one.caches]
        for one in (saved, restored)
    )
    return Result(before != after, f"{len(after)} caches hold {[n for n, _ in after]} tokens")
