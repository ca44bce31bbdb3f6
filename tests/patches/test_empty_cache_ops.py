"""A broken version of ``empty-cache-ops``: with it the probe must be red."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_patches.patches.caches.empty_cache_ops import patch as empty


def empty_caches_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def move_padding(cache: Any) -> None:
        cache.offset = cache.offset - 1

    broken = {
        "save_empty": lambda cache, extra: ([], [], *(getattr(cache, name) for name in extra)),
        "make_empty_row": lambda cache: cache,
        "make_empty_batch": lambda cls, rows: rows[0],
        "add_no_tokens": lambda row, like: like,
        "start_batch": lambda batch, like: None,
        "filter_empty": lambda cache, batch_indices: None,
        "forget_padding": move_padding,
        "is_unused": lambda slot: slot is not None,
    }
    for name, function in broken.items():
        monkeypatch.setattr(empty, name, function)


MUTANTS = {"empty-cache-ops": empty_caches_that_are_not}
