"""Extracts the caches of rows that then go on: one waits, one is in its prompt, one decodes."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, module_of, tiny

_PROMPT = [5, 9, 2, 7, 3, 8]


def probe(target: Target) -> Result:
    """Red if extracted tokens or caches change with their row."""
    module = module_of(target)
    if not hasattr(module.BatchGenerator, "extract_cache"):
        raise NotApplicable("this release's batch generator extracts no tokens")
    generator = module.BatchGenerator(
        tiny("mlx-lm", "qwen3").module, max_tokens=9, prefill_step_size=2
    )
    caches: Any = import_module("mlx_lm.models.cache")
    given = caches.make_prompt_cache(generator.model)
    (uid,) = generator.insert([list(_PROMPT)], caches=[given], all_tokens=[[]])
    for step in range(5):
        cache, tokens = generator.extract_cache([uid])[uid]
        before = (len(tokens), count_tokens(cache))
        generator.next()
        generator.next()
        after = (len(tokens), count_tokens(cache))
        if before != after:
            return Result(True, f"step {step}: (tokens, in the cache) {before} became {after}")
    return Result(False, "extracted tokens and caches stay")


def count_tokens(caches: Any) -> int:
    return int(caches[0].offset)
