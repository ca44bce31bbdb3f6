"""With mlx-vlm's prefix cache, a repetition penalty does not cover the tokens in the cache.

Why
    A prompt whose beginning is in the prefix cache (``APC_ENABLED=1``) is processed from where the
    cache ends. Its logits processors get only these tokens and the generated ones: penalties do
    not count what comes before. The same request has one answer the first time and another one
    after that.
How
    A new batch of prompts knows each row's whole prompt, for the cache. The rows' processors get
    it. Batches without processors or without the prefix cache are not touched.
Upstream
    mlx-vlm 0.5.0 to 0.7.10, not fixed.
Retire when
    ``PromptProcessingBatch`` begins a row's token context with the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import GENERATORS, at


def know_whole_prompts(init: Callable[..., None], batch: Any, *args: Any, **kwargs: Any) -> None:
    """Make a batch of prompts; its processors see each row's whole prompt."""
    init(batch, *args, **kwargs)
    for row, meta in enumerate(batch._apc_meta[: len(batch._token_context)]):
        if prompt := whole_prompt(meta):
            batch._token_context[row] = prompt


def whole_prompt(meta: dict[str, Any] | None) -> list[int]:
    """The whole prompt of a row, from what is noted for the cache; empty if nothing is."""
    return list((meta or {}).get("full_input_ids") or ())


def uses_prefixes(batch: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a batch of prompts is made for the prefix cache; the release names the argument."""
    return bool(kwargs.get("apc_meta"))


PATCH = Patch(
    id="vlm-prefix-penalty",
    every_model=True,
    summary="mlx-vlm: after a prefix-cache hit, penalties ignore the cached tokens",
    targets=at(
        GENERATORS,
        {"PromptProcessingBatch.__init__": around(know_whole_prompts)},
        when=uses_prefixes,
    ),
)
