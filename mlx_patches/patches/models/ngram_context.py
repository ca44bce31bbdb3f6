"""LongCat Flash Ngram: rows whose histories are shorter than its context cannot be batched.

Why
    The embedding of a token reads the tokens before it, which a row's cache keeps: as many as
    it has, up to the context. Rows of one and two tokens have arrays of other widths, and
    neither ``merge`` nor ``extend`` puts them into one: "Cannot broadcast array".
How
    A shorter context is filled up with zeros on the left. The model itself reads zero where
    there is no token before, so each embedding stays what it was, bit by bit.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    ``NgramEmbedding`` keeps contexts of one width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def embedded(
    call: Callable[..., Any], embedding: Any, input_ids: Any, cache: Any = None, **kwargs: Any
) -> Any:
    """The embeddings of tokens (rows, length); the context in ``cache`` has its full width."""
    output = call(embedding, input_ids, cache=cache, **kwargs)
    if cache is not None:
        fill_context(cache, embedding.n - 1)
    return output


def fill_context(cache: Any, width: int) -> None:
    """Fill the tokens (rows, at most ``width``) that a cache keeps with zeros on the left."""
    import mlx.core as mx

    context = cache[0]
    missing = width - context.shape[-1]
    if missing > 0:
        cache[0] = mx.pad(context, [(0, 0), (missing, 0)])


PATCH = Patch(
    id="ngram-context",
    summary="LongCat Flash Ngram: rows with histories shorter than its context cannot be batched",
    targets=tuple(
        Target(distribution, module, "NgramEmbedding.__call__", around(embedded))
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.longcat_flash_ngram"),
            ("mlx-vlm", "mlx_vlm.models.longcat_flash_ngram.language"),
            ("mlx-vlm", "mlx_vlm.models.longcat_flash_sparse.language"),
        )
    ),
    probe="mlx_patches.probes.ngram_context:probe",
    module=__name__,
)
