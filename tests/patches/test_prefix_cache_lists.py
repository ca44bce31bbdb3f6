"""``prefix-cache-lists``: which caches a row is taken out of."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.patches.caches.prefix_cache_lists import patch

from ..releases.conftest import installed


@pytest.fixture
def caches():
    """The release's module of caches."""
    if not installed("mlx-vlm"):
        pytest.skip("no mlx-vlm, whose prefix cache this is")
    return importlib.import_module("mlx_vlm.models.cache")


def test_a_row_is_taken_out_of_batches_only(caches):
    alone, batch = caches.KVCache, lambda: caches.BatchKVCache([0, 1])
    listed = caches.CacheList
    assert patch.has_rows(batch())
    assert patch.has_rows(listed(batch(), batch()))
    assert patch.has_rows(listed(listed(batch()), batch()))
    assert not patch.has_rows(alone())
    assert not patch.has_rows(listed(batch(), alone()))
    assert not patch.has_rows(listed(listed(alone())))


@pytest.mark.parametrize("says", [True, False])
def test_the_release_is_asked_first(caches, says):
    assert patch.ask_parts(lambda layers: says, [caches.BatchKVCache([0])]) is says
    assert not patch.ask_parts(lambda layers: says, [caches.CacheList(caches.KVCache())])


def only_the_list_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "has_rows", lambda cache: True)


MUTANTS = {"prefix-cache-lists": only_the_list_itself}
