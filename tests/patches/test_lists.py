"""Llama 4's chunks in mlx-vlm: up to 0.6.2 it imports the caches of mlx-lm."""

import mlx.core as mx
import pytest

from mlx_patches.lab import EXACT, engine, generators
from mlx_patches.lab.compare import compare_generated
from mlx_patches.lab.rows import LENGTHS, generate_solo, rows_of
from mlx_patches.patches.caches.lists.patch import as_plain, convert_to_batch

from ..releases.models import build_or_skip, module_or_skip


def test_solo_decode_sees_whole_chunk(ungated):
    ungated("chunked-front")
    model = build_or_skip("mlx-vlm:llama4")
    assert same_as_uncached(model)


def same_as_uncached(model: object) -> bool:
    row = rows_of(model, LENGTHS)[0]
    text = list(row.text)
    cache = model.module.make_cache()
    engine.forget(model)
    out = [model.call([text[:3]], cache)[0, -1]]
    out += [model.call([[token]], cache)[0, -1] for token in text[3:]]
    whole = model.call([text], model.module.make_cache())[0, 2:]
    return mx.abs(mx.stack(out) - whole).max().item() <= 1e-3


@pytest.fixture(params=["mlx_lm.models.cache", "mlx_vlm.models.cache"])
def caches(request):
    module = module_or_skip(request.param, "ChunkedKVCache", "BatchKVCache")
    if not hasattr(module.KVCache, "merge"):
        pytest.skip("caches cannot be merged in this release")
    return module


def test_chunks_become_rows(caches):
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

    assert as_plain(caches.ChunkedKVCache(4)).keys is None
    plain = caches.KVCache()
    assert as_plain(plain) is plain


def test_row_joins_llama4(monkeypatch, beside):
    module_or_skip("mlx_vlm.generate", "Batch")  # without it the generator merges caches
    model = build_or_skip("mlx-vlm:llama4")
    # Real chunks are longer than a buffer's step; the generator creates the first row's caches.
    chunked = next(type(c) for c in model.make_cache() if hasattr(c, "chunk_size"))
    monkeypatch.setattr(chunked, "step", 4)
    prompts = [5, 9, 2, 7], [8, 6, 10]
    beside("row-by-row", "extend-solo-batch", "offset-alias", "mask-from-cache-list")
    rows = generators.generate(model, [prompts[0]], prompts[1], 24)
    cell = compare_generated(rows, [generate_solo(model, prompt, 24) for prompt in prompts], EXACT)
    assert cell.verdict == "green", cell.detail
