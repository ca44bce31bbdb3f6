from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches.caches.joined_dtype import patch as joined
from mlx_patches.patches.caches.joined_dtype.patch import extend_in_own_dtype

from ..releases.models import module_or_skip

KINDS = ["BatchKVCache", "BatchRotatingKVCache"]
FAMILIES = {"llama": "only KVCache", "gemma3_text": "windows beside it"}


@pytest.fixture
def caches(distribution):
    return module_or_skip(f"{package_of(distribution)}.models.cache", *KINDS)


def batch(module, kind, rows, tokens=0, dtype=mx.bfloat16):
    padding = [0] * rows
    cache = getattr(module, kind)(*([8] if "Rotating" in kind else []), padding)
    if tokens:
        shape = (rows, 2, tokens, 4)
        keys = mx.arange(rows * 2 * tokens * 4, dtype=mx.float32).reshape(shape).astype(dtype)
        cache.update_and_fetch(keys, -keys)
    return cache


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_in_order(caches, kind, dtype):
    extend = getattr(caches, kind).extend
    for new_first in (False, True):
        written, new = batch(caches, kind, 2, 3, dtype), batch(caches, kind, 1)
        keys, values = written.keys, written.values
        cache, other = (new, written) if new_first else (written, new)
        extend_in_own_dtype(extend, cache, other)
        rows = slice(1, 3) if new_first else slice(0, 2)
        for side, was in ((cache.keys, keys), (cache.values, values)):
            assert side.dtype == dtype
            assert side.shape == (3, *was.shape[1:])
            assert mx.array_equal(side[rows], was)
        assert cache.offset.tolist() == ([0, 3, 3] if new_first else [3, 3, 0])
        padding = [3, 0, 0] if new_first else [0, 0, 3]
        assert cache.left_padding.tolist() == padding
        if not new_first:
            assert other.keys is other.values is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [(0, 0), (3, 5)], ids=str)
def test_equal_dtypes_go_to_release(caches, kind, tokens):
    assert not joined.joins_empty(*(batch(caches, kind, 1, count) for count in tokens))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("new_first", [False, True])
def test_failed_extend_leaves_both(caches, kind, new_first):
    pair = [batch(caches, kind, 2, 3), batch(caches, kind, 1)]
    cache, other = reversed(pair) if new_first else pair

    def refuse(*both):
        assert all(one.keys is not None for one in both)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        extend_in_own_dtype(refuse, cache, other)
    assert pair[1].keys is pair[1].values is None
    assert pair[0].keys.shape[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_joining_prompts_stay_bfloat16(family, ungated):
    # Without the class no prompt joins others while they are read.
    generate = module_or_skip("mlx_lm.generate", "PromptProcessingBatch")
    ungated("joined-dtype")
    model = build(Family("mlx-lm", family)).module
    model.set_dtype(mx.bfloat16)
    engine = generate.BatchGenerator(model, max_tokens=6, prefill_step_size=4)
    engine.insert([[1 + place % 7 for place in range(length)] for length in (14, 11)])
    types, counts = set(), set()
    for turn in range(20):
        if turn in (1, 2, 6):
            engine.insert([[3 + turn, 5, 2, 9, 4, 8]])
        engine.next()
        for held in (engine._prompt_batch, engine._generation_batch):
            counts.add(len(held.uids))
            types |= {
                side.dtype
                for layer in held.prompt_cache
                if layer.keys is not None
                for side in (layer.keys, layer.values)
            }
    assert types == {mx.bfloat16}
    assert max(counts) >= 4


def columns_of_the_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    start_batch = joined.start_batch

    def start_float32(batch: Any, like: Any) -> None:
        start_batch(batch, like)
        batch.keys = batch.keys.astype(mx.float32)

    monkeypatch.setattr(joined, "start_batch", start_float32)


MUTANTS = {"joined-dtype": columns_of_the_default_type}
