"""Keeps the caches of speculative decoding, and checks their contents and the next turn."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, tiny

_PROMPT = [5, 9, 2, 7]
_MORE = [11, 12, 13]
_LENGTHS = range(1, 8)


def probe(target: Target) -> Result:
    """Red if a kept cache lacks tokens of its turn, or the next turn differs from a fresh one."""
    module = module_of(target)
    model, draft = (tiny("mlx-lm", "qwen3", seed).module for seed in (0, 1))
    for draft_model in (draft, model):  # drafts that are mostly wrong, and always right
        for length in _LENGTHS:
            kept = make_caches(model, draft_model)
            answer = decode(module, model, draft_model, _PROMPT, kept, length)
            held = sorted({cache.offset for cache in kept})
            turn = [*_PROMPT, *answer]
            if held != [len(turn)]:
                return Result(True, f"a turn of {len(turn)} tokens leaves {held} in the caches")
            after = decode(module, model, draft_model, _MORE, kept, 6)
            caches = make_caches(model, draft_model)
            fresh = decode(module, model, draft_model, [*turn, *_MORE], caches, 6)
            if after != fresh:
                return Result(True, f"the next turn is {after}, with fresh caches {fresh}")
    return Result(False, "the kept caches hold the turn, and the next one is right")


def make_caches(*models: Any) -> list[Any]:
    caches: Any = import_module("mlx_lm.models.cache")
    return [cache for model in models for cache in caches.make_prompt_cache(model)]


def decode(
    module: Any, model: Any, draft: Any, prompt: Sequence[int], kept: list[Any], length: int
) -> list[int]:
    """The tokens of an answer of this length, from kept caches."""
    steps = module.speculative_generate_step(
        mx.array(prompt), model, draft, prompt_cache=kept, max_tokens=length
    )
    return [int(step[0]) for step in steps]
