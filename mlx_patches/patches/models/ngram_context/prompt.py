"""LongCat Flash Ngram in mlx-vlm: wrong first tokens, the n-grams ignore the prompt.

Why: The embedding of a token depends on the tokens before it, which the cache keeps. mlx-vlm embeds
    a prompt without the cache, and the language model, which receives the embeddings, does not
    store the prompt's tokens. The answer is embedded as if nothing came before it.
How: The language model stores the tokens of the embeddings that it receives. Embeddings computed
    with the cache leave it unchanged, so that each token is stored once.
Upstream: Not reported; present in mlx-vlm 0.7.10.
Retire when: The probe is green without the patch for every supported release.
"""

import copy
from typing import Any

from ....core.verbs import Function, Patch, argument

_FAMILY = "mlx_vlm.models.longcat_flash_ngram"


def store_prompt(model: Any, /, input_ids: Any, inputs_embeds: Any, cache: Any) -> Any:
    """The decoder's caches, with the tokens of the given embeddings in the first."""
    if inputs_embeds is not None and input_ids is not None and cache is not None:
        store_tokens(model.ngram_embeddings, input_ids, cache[0])
    return cache


def store_tokens(embedding: Function, ids: Any, cache: Any) -> None:
    """Store tokens in the embedding's cache; its result is never evaluated."""
    embedding(ids, cache=cache)


def copy_context(cache: Any) -> Any:
    """Caches whose first may change without changing the caller's."""
    if cache is None:
        return None
    context = copy.copy(cache[0])
    context.cache = list(context.cache)
    return [context, *cache[1:]]


PATCH = Patch(
    id="ngram-prompt",
    wrong_solo="longcat_flash_ngram",
    targets=(
        *argument(f"{_FAMILY}.language:LongcatFlashNgramModel.__call__", "cache", store_prompt),
        *argument(
            f"{_FAMILY}.longcat_flash_ngram:Model.get_input_embeddings", "cache", copy_context
        ),
    ),
    probe=".probe_prompt:probe",
)
