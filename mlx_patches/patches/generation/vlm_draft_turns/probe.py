"""Looks up the prefix of a turn over the caches that drafts leave."""

from typing import Any

from ....probes.drafted import Drafter, decode
from ....probes.kit import (
    Result,
    Target,
    feed_one_by_one,
    import_module,
    own_class_of,
    require_own,
    tiny,
)

_TURN = [1, 2, 3, 4, 5, 6]
# A kind of drafter and a model that it drafts for; Qwen3.5 is recurrent.
_ROUNDS = {
    "_dflash_rounds": ("dflash", "qwen3_5"),
    "_eagle3_rounds": ("eagle3", "qwen3_5"),
    "_mtp_rounds": ("mtp", "gemma4"),
}


def probe(target: Target) -> Result:
    """Red if more tokens are found than the caches have, or a rejected draft is kept."""
    caches: Any = import_module("mlx_vlm.models.cache")
    if target.name not in _ROUNDS:
        state = own_class_of(target)()
        state.update(_TURN, [feed_one_by_one(caches.KVCache(), len(_TURN) - 1)])
        found = state.find_prefix_length([*_TURN, 90, 91])
        return Result(found >= len(_TURN), f"{found} tokens found in caches of {len(_TURN) - 1}")
    require_own(target)
    kind, family = _ROUNDS[target.name]
    module, model = import_module("mlx_vlm.generate"), tiny("mlx-vlm", family).module
    kept, state = caches.make_prompt_cache(model), module.PromptCacheState()
    drafts = {"draft_model": Drafter(), "draft_kind": kind}
    turn = [*_TURN, *decode(module, model, _TURN, prompt_cache=kept, **drafts)]
    state.update(turn, kept)
    held = max(getattr(cache, "offset", 0) for cache in kept)
    found = min(held, state.find_prefix_length([*turn, 90, 91]))
    # Each draft is wrong, so the turn's last token was not fed.
    return Result(found >= len(turn), f"{found} tokens of {len(turn)} are used from {held}")
