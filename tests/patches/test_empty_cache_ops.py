import importlib
from typing import Any

import pytest

from mlx_patches.patches.caches.empty_cache_ops import patch as empty

from ..releases.conftest import installed


def test_values_of_width_zero(ungated):
    """DeepSeek V3.2's indexer keeps keys alone; MLX before 0.30.6 takes no rows of nothing."""
    mx = pytest.importorskip("mlx.core")
    ungated("empty-cache-ops")
    package = "mlx_lm" if installed("mlx-lm") else "mlx_vlm"
    cache = importlib.import_module(f"{package}.models.cache").BatchKVCache([0, 2, 1])
    keys = mx.arange(3.0)[:, None, None, None] + mx.zeros((3, 1, 4, 2))
    cache.update_and_fetch(keys, mx.zeros((3, 1, 4, 0)))
    cache.filter(mx.array([1, 2]))
    assert cache.left_padding.tolist() == [1, 0]
    assert cache.keys[:, 0, 0, 0].tolist() == [1, 2]
    assert cache.values.shape == (*cache.keys.shape[:3], 0)


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
