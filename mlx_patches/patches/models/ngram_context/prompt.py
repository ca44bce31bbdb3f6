"""LongCat Flash Ngram forgets the end of its prompt: the first tokens of an answer are wrong.

Why
    The embedding of a token depends on the tokens before it, which the cache keeps. mlx-vlm
    embeds a prompt without the cache, and the language model, which is given the embeddings, does
    not note the prompt's tokens: the answer is embedded as if nothing came before it.
How
    The language model notes the tokens whose embeddings it is given. Embeddings that are computed
    with the cache leave it as it was, so that it notes each token once.
Upstream
    Not reported; present in mlx-vlm 0.7.10.
Retire when
    The probe is green without the patch for every supported release.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

_FAMILY = "mlx_vlm.models.longcat_flash_ngram"


def decoded(
    call: Callable[..., Any], model: Any, ids: Any, inputs_embeds: Any = None, cache: Any = None
) -> Any:
    """Run the decoder on tokens (rows, length) or their embeddings; its cache notes the tokens."""
    if inputs_embeds is not None and ids is not None and cache is not None:
        note(model.ngram_embeddings, ids, cache[0])
    return call(model, ids, inputs_embeds, cache)


def note(embedding: Callable[..., Any], ids: Any, cache: Any) -> None:
    """Let the embedding put tokens into its cache; nothing evaluates what it returns."""
    embedding(ids, cache=cache)


def embedded(call: Callable[..., Any], *args: Any, cache: Any = None, **kwargs: Any) -> Any:
    """The embeddings of a prompt; its cache is read, and not changed."""
    if cache is None:
        return call(*args, **kwargs)
    read = copy.copy(cache[0])
    read.cache = list(read.cache)
    return call(*args, cache=[read, *cache[1:]], **kwargs)


PATCH = Patch(
    id="ngram-prompt",
    wrong_alone="longcat_flash_ngram",
    changes_alone=True,
    summary="LongCat Flash Ngram in mlx-vlm: wrong first tokens, the n-grams ignore the prompt",
    targets=(
        Target(
            "mlx-vlm", f"{_FAMILY}.language", "LongcatFlashNgramModel.__call__", around(decoded)
        ),
        Target(
            "mlx-vlm",
            f"{_FAMILY}.longcat_flash_ngram",
            "Model.get_input_embeddings",
            around(embedded),
        ),
    ),
    probe=".probe_prompt:probe",
)
