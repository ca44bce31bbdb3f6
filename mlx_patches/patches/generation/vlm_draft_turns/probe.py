"""Looks up the prefix of a turn whose caches lack its last token, as drafts leave them."""

from ....probes.kit import Result, Target, feed_one_by_one, import_module, own_class_of

_TURN = [1, 2, 3, 4, 5, 6]


def probe(target: Target) -> Result:
    """Red if more tokens are found than the caches have."""
    caches = import_module("mlx_vlm.models.cache")
    state = own_class_of(target)()
    state.update(_TURN, [feed_one_by_one(caches.KVCache(), len(_TURN) - 1)])
    found = state.find_prefix_length([*_TURN, 90, 91])
    return Result(found >= len(_TURN), f"{found} tokens are found in caches of {len(_TURN) - 1}")
