"""LongCat Flash Ngram: rows whose histories are shorter than its context cannot be batched.

Why
    The embedding of a token depends on the tokens before it. A row's cache keeps these tokens: as
    many as the row has, up to the context's width. Rows of one and two tokens then have arrays of
    different widths, which ``merge`` and ``extend`` cannot join: "Cannot broadcast array".
How
    A shorter context is padded with zeros on the left. The model itself reads zero where there is
    no earlier token, so each embedding is unchanged, bit by bit.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    ``NgramEmbedding`` keeps contexts of one width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import at, models, vlm_models


def embedded(
    call: Callable[..., Any], embedding: Any, input_ids: Any, cache: Any = None, **kwargs: Any
) -> Any:
    """The embeddings of tokens (rows, length); pads the context in ``cache`` to its full width."""
    output = call(embedding, input_ids, cache=cache, **kwargs)
    if cache is not None:
        fill_context(cache, embedding.n - 1)
    return output


def fill_context(cache: Any, width: int) -> None:
    """Pad the tokens (rows, at most ``width``) in a cache with zeros on the left."""
    import mlx.core as mx

    context = cache[0]
    missing = width - context.shape[-1]
    if missing > 0:
        cache[0] = mx.pad(context, [(0, 0), (missing, 0)])


PATCH = Patch(
    id="ngram-context",
    severity="crash",
    every_model=True,
    summary="LongCat Flash Ngram crashes in a batch if a row is shorter than its n-gram context",
    targets=at(
        (*models("longcat_flash_ngram"), *vlm_models("longcat_flash_sparse")),
        {"NgramEmbedding.__call__": around(embedded)},
    ),
)
