"""mlx-vlm: after a prefix-cache hit, penalties ignore the cached tokens.

Why: A prompt whose beginning is in the prefix cache (``APC_ENABLED=1``) is processed from where the
    cache ends. Its logits processors get only these tokens and the generated ones: penalties ignore
    the cached ones, and a repeated request gets another answer.
How: A new batch of prompts has each row's whole prompt, for the cache. The rows' processors get it.
    Batches without processors or without the prefix cache are unchanged.
Upstream: mlx-vlm 0.5.0 to 0.7.10, not fixed.
Retire when: ``PromptProcessingBatch`` begins a row's token context with the whole prompt.
"""

from typing import Any

from ....core.verbs import Patch, after
from ..._shared.targets import vlm_generators


def add_cached_prompts(batch: Any, /) -> None:
    for row, meta in enumerate(batch._apc_meta[: len(batch._token_context)]):
        if prompt := whole_prompt(meta):
            batch._token_context[row] = prompt


def whole_prompt(meta: dict[str, Any] | None) -> list[int]:
    """The whole prompt of a row, from the cache's notes; empty if there is none."""
    return list((meta or {}).get("full_input_ids") or ())


def has_prefixes(apc_meta: Any) -> bool:
    return bool(apc_meta)


PATCH = Patch(
    id="vlm-prefix-penalty",
    targets=after(
        vlm_generators("PromptProcessingBatch.__init__"), add_cached_prompts, when=has_prefixes
    ),
)
