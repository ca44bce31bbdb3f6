"""Attention caches that were never written."""

from __future__ import annotations

from typing import Any


def is_empty(cache: Any) -> bool:
    """Whether an attention cache was never written."""
    return cache.keys is None


def start_batch(batch: Any, like: Any) -> None:
    """Give an empty batch cache zero columns, with the heads, width and dtype of ``like``'s."""
    import mlx.core as mx

    rows = batch.offset.size
    batch.keys, batch.values = (
        mx.zeros((rows, side.shape[1], 0, side.shape[3]), side.dtype)
        for side in (like.keys, like.values)
    )
