import copy
import importlib
import inspect
from contextlib import closing

import mlx.core as mx
import pytest

from mlx_patches.patches.caches.pool_overlap import patch, windows
from mlx_patches.patches.caches.pool_overlap.probe import LENGTH, RATIO, WIDTH, make_compressor

from ..releases.models import module_or_skip


@pytest.fixture
def module(ungated):
    found = module_or_skip("mlx_vlm.models.deepseek_v4.language")
    ungated("pool-overlap")
    return found


@pytest.fixture
def caches(module):
    return importlib.import_module("mlx_vlm.models.cache")


@pytest.fixture
def compressor(module):
    return make_compressor(module)


def text_of(row):
    return mx.random.normal((1, LENGTH, WIDTH), key=mx.random.key(row))


def feed(compressor, cache, row, stop, start=0):
    return compressor(text_of(row)[:, start:stop], cache, start)


def decode_steps(compressor, batch, rows, starts, count):
    """Decode ``count`` steps of a batch; the texts' rows and their first positions are given."""
    for step in range(count):
        at = [start + step for start in starts]
        tokens = [text_of(row)[:, one : one + 1] for row, one in zip(rows, at, strict=True)]
        pooled = compressor(mx.concatenate(tokens), batch, mx.array(at))
    return pooled


def check(compressor, caches, found, row, stop):
    """A row's pooled values up to a token equal those of a single call."""
    own = feed(compressor, caches.PoolingCache(RATIO), row, stop)
    assert mx.allclose(found[: own.shape[1]], own[0], atol=1e-5)


# Where the last windows begin: with a window just pooled, and within the next.
STOPS = (12, 14)


@pytest.fixture(params=STOPS)
def half(request, compressor, caches):
    cache = caches.PoolingCache(RATIO)
    feed(compressor, cache, 0, request.param)
    return cache, request.param


def goes_on(compressor, caches, cache, start):
    found = feed(compressor, cache, 0, start + 6, start)
    check(compressor, caches, found[0], 0, start + 6)


def through_a_file(caches, cache, folder):
    apc = pytest.importorskip("mlx_vlm.apc")
    written = cache.__dict__[windows.WINDOWS]
    # As the engine does: another thread writes the file.
    mx.eval([cache.buf_kv, cache.buf_gate, cache.pooled, written.kv, written.gate])
    with closing(apc.DiskBlockStore(folder)) as store:
        store.save_exact_cache(1, [1, 2], 0, [cache])
        loaded = store.load_exact_cache(1, wait_in_flight_ms=10000)
    return None if loaded is None else loaded[2][0]


def clone(caches, cache, folder):
    adapters = pytest.importorskip("mlx_vlm.apc_adapters")
    return adapters.clone_cache_entry(cache, min_capacity_tokens=None, eval_targets=[])


def set_state(caches, cache, folder):
    fresh = caches.PoolingCache(RATIO)
    fresh.state = cache.state
    return fresh


def restore_snapshot(caches, cache, folder):
    fresh = caches.PoolingCache(RATIO)
    if not hasattr(fresh, "prefix_cache_restore"):
        pytest.skip("this release takes no snapshots")
    fresh.prefix_cache_restore(cache.prefix_cache_snapshot())
    return fresh


WAYS = {
    "copied": lambda caches, cache, folder: copy.deepcopy(cache),
    "from_state": lambda _, cache, folder: type(cache).from_state(cache.state, cache.meta_state),
    "taken_from_a_batch": lambda caches, cache, folder: caches.BatchPoolingCache.merge(
        [caches.PoolingCache(RATIO), cache]
    ).extract(1),
    **{way.__name__: way for way in (set_state, restore_snapshot)},
    **{way.__name__: way for way in (clone, through_a_file)},
}


@pytest.mark.parametrize("way", WAYS)
def test_row_continues(way, half, compressor, caches, tmp_path):
    cache, start = half
    again = WAYS[way](caches, cache, tmp_path)
    if again is None:
        pytest.skip("this release keeps no such cache")
    goes_on(compressor, caches, again, start)
    goes_on(compressor, caches, cache, start)  # and so does the cache itself


def test_release_reads_state_with_windows(half, caches, ungated):
    cache, start = half
    saved, pooled = cache.state, cache.pooled
    written = cache.__dict__.pop(windows.WINDOWS)
    own = cache.state
    assert written.ends == (start // RATIO,)
    fresh = caches.PoolingCache(RATIO)
    patch_free = inspect.unwrap(type(fresh).state.fset)
    patch_free(fresh, saved)
    for one, other in zip(fresh.state, own, strict=True):
        assert (one is None and other is None) or mx.array_equal(one, other)
    assert mx.array_equal(fresh.pooled, pooled)


def test_batch_equals_solo(compressor, caches):
    """They are merged, extended, filtered, and restored from a state, and complete no window at
    the same step."""
    rows = {}
    for row, stop in enumerate((4, 9, 3, 10)):
        rows[row] = caches.PoolingCache(RATIO)
        feed(compressor, rows[row], row, stop)
    batch = caches.PoolingCache.merge([rows[0], rows[1]])
    decode_steps(compressor, batch, [0, 1], [4, 9], 3)
    batch.extend(caches.PoolingCache.merge([rows[2], rows[3]]))
    at = [7, 12, 3, 10]
    decode_steps(compressor, batch, [0, 1, 2, 3], at, 5)
    batch.filter([3, 0, 2])
    kept, at = [3, 0, 2], [15, 12, 8]
    fresh = caches.BatchPoolingCache(RATIO, [0] * len(kept))  # 0.6 needs it to restore a state
    fresh.state, fresh.meta_state = batch.state, batch.meta_state
    fresh.state = fresh.state
    batch = fresh
    found = decode_steps(compressor, batch, kept, at, 5)
    for place, (row, start) in enumerate(zip(kept, at, strict=True)):
        check(compressor, caches, found[place], row, start + 5)
        solo = batch.extract(place)
        again = feed(compressor, solo, row, start + 8, start + 5)
        check(compressor, caches, again[0], row, start + 8)


def test_padded_chunked_batch(compressor, caches):
    """Rows with unequal histories get unequal prompts in two chunks."""
    histories, lengths = [9, 4, 0], [8, 3, 6]
    rows = [caches.PoolingCache(RATIO) for _ in histories]
    for row, (cache, stop) in enumerate(zip(rows, histories, strict=True)):
        if stop:
            feed(compressor, cache, row, stop)
    batch = caches.PoolingCache.merge(rows)
    batch.prepare(lengths=lengths, right_padding=[8 - length for length in lengths])
    for start, stop in ((0, 3), (3, 8)):
        tokens = [
            mx.concatenate([text_of(row)[:, history : history + length], mx.ones((1, 8, WIDTH))], 1)
            for row, (history, length) in enumerate(zip(histories, lengths, strict=True))
        ]
        chunk = mx.concatenate([one[:, start:stop] for one in tokens])
        found = compressor(chunk, batch, mx.array(histories) + start)
    batch.finalize()
    at = [history + length for history, length in zip(histories, lengths, strict=True)]
    found = decode_steps(compressor, batch, [0, 1, 2], at, 5)
    for row, start in enumerate(at):
        check(compressor, caches, found[row], row, start + 5)


def test_trimmed_windows_are_not_read(half, compressor, caches):
    """As after a draft: the release cuts the pooled values and restores the tokens."""
    cache, start = half
    kept = (cache.remainder, *map(copy.copy, (cache.buf_kv, cache.buf_gate)), cache.pooled)
    feed(compressor, cache, 1, start + 8, start)
    cache.remainder, cache.buf_kv, cache.buf_gate, cache.pooled = kept
    goes_on(compressor, caches, cache, start)


def test_partly_verified_draft(half, compressor, caches):
    cache, start = half
    if not hasattr(cache, "start_speculation"):
        pytest.skip("the caches of this release verify no draft")
    cache.start_speculation(8)
    feed(compressor, cache, 0, start + 3, start)
    feed(compressor, cache, 0, start + 8, start + 3)
    cache.commit_speculation(5)
    goes_on(compressor, caches, cache, start + 5)


def test_partly_verified_draft_in_batch(compressor, caches):
    rows = [caches.PoolingCache(RATIO) for _ in range(2)]
    if not hasattr(rows[0], "start_speculation"):
        pytest.skip("the caches of this release verify no draft")
    for row, cache in enumerate(rows):
        feed(compressor, cache, row, 9 + row)
    batch = caches.PoolingCache.merge(rows)
    batch.start_speculation(8)
    decode_steps(compressor, batch, [0, 1], [9, 10], 8)
    batch.commit_speculation([8, 1])
    found = decode_steps(compressor, batch, [0, 1], [17, 11], 5)
    check(compressor, caches, found[0], 0, 22)
    check(compressor, caches, found[1], 1, 16)


def test_cleared_cache_starts_anew(half, compressor, caches):
    """As 0.6 and 0.7.0 clear one; and with another text's state."""
    cache, _ = half
    cache.remainder, cache.buf_kv, cache.buf_gate, cache.pooled = 0, None, None, None
    found = feed(compressor, cache, 1, LENGTH)
    assert mx.array_equal(found, feed(compressor, caches.PoolingCache(RATIO), 1, LENGTH))
    cache.state = (None, None, None)
    assert windows.read_windows(cache) is None


def test_one_call_is_unchanged(compressor, caches, monkeypatch):
    found = feed(compressor, caches.PoolingCache(RATIO), 0, LENGTH)
    monkeypatch.setattr(patch, "WithLastWindow", lambda cache: cache)
    assert mx.array_equal(found, feed(compressor, caches.PoolingCache(RATIO), 0, LENGTH))
    # Without an overlap no windows are kept.
    compressor.overlap = False
    assert not patch.has_overlap(compressor, caches.PoolingCache(RATIO))
    assert not patch.has_overlap(compressor, None)


def test_decode_reads_no_device(compressor, caches, device_reads):
    rows = [caches.PoolingCache(RATIO) for _ in range(2)]
    for row, cache in enumerate(rows):
        feed(compressor, cache, row, 9 + row)
    batch = caches.PoolingCache.merge(rows)
    decode_steps(compressor, batch, [0, 1], [9, 10], 5)
    assert not [place for place in device_reads if "mlx_patches" in place]


def test_windows_keep_no_prompt_alive(compressor, caches):
    """They are computed with the step that pools, and own their memory."""
    text = mx.random.normal((1, 4096, WIDTH))
    mx.eval(text)
    before = mx.get_active_memory()
    cache = caches.PoolingCache(RATIO)
    pooled = compressor(text, cache, 0)
    mx.eval(pooled)
    pooled_bytes = pooled.nbytes
    assert mx.get_active_memory() - before < pooled_bytes + text.nbytes // 4
