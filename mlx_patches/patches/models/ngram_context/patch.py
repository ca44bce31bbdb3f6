"""LongCat Flash Ngram crashes in a batch if a row is shorter than its n-gram context.

Why: The embedding of a token depends on the tokens before it. A row's cache keeps these tokens: as
    many as the row has, up to the context's width. ``merge`` and ``extend`` cannot join contexts of
    different widths: "Cannot broadcast array".
How: A shorter context is padded with zeros on the left. The model reads zero for missing tokens
    anyway, so each embedding stays bit-identical.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: ``NgramEmbedding`` keeps contexts of one width.
"""

from typing import Any

from ....core.verbs import Patch, after, family, mx, vlm_family


def pad_context(embedding: Any, /, cache: Any) -> None:
    if cache is not None:
        pad_tokens(cache, embedding.n - 1)


def pad_tokens(cache: Any, width: int) -> None:
    """Pad the tokens (rows, at most ``width``) in a cache with zeros on the left."""
    context = cache[0]
    missing = width - context.shape[-1]
    if missing > 0:
        cache[0] = mx.pad(context, [(0, 0), (missing, 0)])


PATCH = Patch(
    id="ngram-context",
    severity="crash",
    every_model=True,
    targets=(
        *after(family("longcat_flash_ngram", "NgramEmbedding.__call__"), pad_context),
        *after(vlm_family("longcat_flash_sparse", "NgramEmbedding.__call__"), pad_context),
    ),
)
