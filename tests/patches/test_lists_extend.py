"""Batches of one row beyond the probe: caches that keep only a chunk."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.lab import EXACT, Family, generators
from mlx_patches.lab.build import build
from mlx_patches.lab.compare import compare_generated
from mlx_patches.lab.rows import alone
from mlx_patches.patches.caches.lists.patch import as_plain, convert_to_batch
from mlx_patches.probes.fixtures import with_patches

mx = pytest.importorskip("mlx.core")


@pytest.fixture(params=["mlx_lm.models.cache", "mlx_vlm.models.cache"])
def caches(request):
    module = pytest.importorskip(request.param)
    for name in ("ChunkedKVCache", "BatchKVCache"):
        if getattr(module, name, None) is None:
            pytest.skip(f"no {name} in this release")
    if not hasattr(module.KVCache, "merge"):
        pytest.skip("caches cannot be merged in this release")
    return module


def test_a_chunk_is_in_its_place(caches):
    chunked = caches.ChunkedKVCache(4)
    chunked.step = 2
    for token in range(7):
        chunked.maybe_trim_front()
        chunked.update_and_fetch(*[mx.full((1, 1, 1, 2), token + 1.0)] * 2)
    assert chunked.start_position > 0
    batch = convert_to_batch(chunked)
    assert batch.offset.tolist() == [7]
    held = batch.keys[0, 0, :7, 0].tolist()
    dropped = chunked.start_position
    assert held == [0.0] * dropped + [float(token + 1) for token in range(dropped, 7)]


def test_an_empty_chunk_is_an_empty_row(caches):
    assert as_plain(caches.ChunkedKVCache(4)).keys is None
    plain = caches.KVCache()
    assert as_plain(plain) is plain


def test_a_row_joins_llama4(monkeypatch):
    generate = pytest.importorskip("mlx_vlm.generate")
    if not hasattr(importlib.import_module(generate.__name__), "Batch"):
        pytest.skip("the generator merges caches in this release")
    model = build(Family("mlx-vlm", "llama4"))
    # Real chunks are longer than a buffer's step; the generator creates the first row's caches.
    chunked = next(type(c) for c in model.make_cache() if hasattr(c, "chunk_size"))
    monkeypatch.setattr(chunked, "step", 4)
    prompts = [5, 9, 2, 7], [8, 6, 10]
    needed = ("row-by-row", "extend-solo-batch", "offset-alias", "mask-from-cache-list")
    with with_patches(needed):
        said = generators.generate(model, [prompts[0]], prompts[1], 24)
        cell = compare_generated(said, [alone(model, prompt, 24) for prompt in prompts], EXACT)
    assert cell.verdict == "green", cell.detail
