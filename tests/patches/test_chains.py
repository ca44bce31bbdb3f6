import copy
import importlib
import random

import mlx.core as mx
import pytest

from mlx_patches.lab.cache_arrays import count_edges
from mlx_patches.patches.caches.chains import patch as chains

from ..releases.conftest import is_installed

# Without mlx-lm, mlx-vlm uses its own caches.
package = "mlx_lm" if is_installed("mlx-lm") else "mlx_vlm"
module = importlib.import_module(f"{package}.models.cache")


def feed(steps, length=1):
    """A batch cache after some updates, and the results of the updates."""
    cache, answers = module.BatchKVCache([1, 0]), []
    for step in range(steps):
        token = mx.full((2, 1, length, 8), step, mx.float32)
        answers.append(cache.update_and_fetch(token, token))
        mx.eval(answers[-1])
    return cache, answers


@pytest.mark.parametrize("length", [1, 3, 48])
def test_keys_values_and_offset_equal_release(length, ungated):
    cache, answers = feed(70, length)
    ungated("offset-chain")
    other, more = feed(70, length)
    assert other.offset.tolist() == cache.offset.tolist()
    for one, two in zip(answers, more, strict=True):
        assert all(mx.array_equal(a, b).item() for a, b in zip(one, two, strict=True))
    assert mx.array_equal(cache.keys, other.keys).item()


def test_failing_cut_is_reported(ungated, monkeypatch):
    def fail(*args):
        raise ValueError("on purpose")

    cache, answers = feed(70)
    monkeypatch.setattr(chains, "cut_chain", fail)
    manager = ungated("offset-chain")
    other, more = feed(70)
    assert other.offset.tolist() == cache.offset.tolist()
    assert mx.array_equal(answers[-1][0], more[-1][0]).item()
    assert manager.failures["offset-chain"].count


@pytest.mark.parametrize("length", [1, 2, 5])
def test_chunks_of_any_length_are_evaluated(length, ungated):
    """A step of several tokens may skip the position at which the count is evaluated."""
    ungated("offset-chain")
    cache, _ = feed(200, length)
    assert count_edges(cache.offset) <= count_edges(feed(1)[0].offset) * 33


def list_offsets(seed):
    """The offset after each of many operations of a batch, in an order that a host may use."""
    choose = random.Random(seed)
    cache, _ = feed(1)
    seen = []
    for _ in range(150):
        rows = cache.offset.shape[0]
        act = choose.choice(
            ["update"] * 9
            + ["single"] * 3
            + ["trim", "filter", "extend", "finalize", "write", "subtract", "copy", "state"]
        )
        if act == "update":
            token = mx.ones((rows, 1, choose.choice([1, 1, 1, 2, 40]), 8))
            cache.update_and_fetch(token, token)
        elif act == "single":
            for _ in range(choose.randrange(30, 70)):
                cache.update_and_fetch(mx.ones((rows, 1, 1, 8)), mx.ones((rows, 1, 1, 8)))
        elif act == "state":
            other, _ = feed(choose.randrange(1, 99))
            cache.state = other.state
        elif act == "trim":
            cache.trim(choose.randrange(3))
        elif act == "filter" and rows > 1:
            cache.filter(mx.array(sorted(choose.sample(range(rows), rows - 1))))
        elif act == "extend" and rows < 5:
            cache.extend(feed(choose.randrange(1, 50))[0])
        elif act == "finalize" and hasattr(cache, "_right_padding"):
            padding = [choose.randrange(3) for _ in range(rows)]
            cache.prepare(lengths=[3 - pad for pad in padding], right_padding=padding)
            token = mx.ones((rows, 1, 3, 8))
            cache.update_and_fetch(token, token)
            cache.finalize()
        elif act == "write":
            cache.offset = cache.offset + 1
        elif act == "subtract":
            cache.offset -= mx.array([choose.randrange(2) for _ in range(rows)])
        elif act == "copy":
            cache = copy.copy(cache)
        seen.append((cache.offset if choose.randrange(3) == 0 else mx.array(cache.offset)).tolist())
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_offset_equals_release_after_any_operation(seed, ungated):
    wanted = list_offsets(seed)
    ungated("offset-chain")
    assert list_offsets(seed) == wanted


def test_offset_and_its_handles(beside):
    """``offset-alias`` changes how the same attribute is read."""
    wanted = list_offsets(0)
    beside("offset-alias", "offset-chain")
    assert list_offsets(0) == wanted
    cache, _ = feed(70)
    assert count_edges(cache.offset) <= count_edges(feed(1)[0].offset) * 33


def test_changes_without_patch_are_seen(ungated):
    manager = ungated("offset-chain")
    cache, _ = feed(40)
    manager.restore()
    cache.offset -= 7
    ungated("offset-chain")
    token = mx.ones((2, 1, 1, 8))
    for _ in range(40):
        cache.update_and_fetch(token, token)
    assert cache.offset.tolist() == [-1 + 80 - 7, 80 - 7]


def test_chain_additions_do_not_run(ungated, monkeypatch):
    """Only the offset at the start of a count is evaluated, and only once."""
    ungated("offset-chain")
    tied = []
    tie = chains.tie
    monkeypatch.setattr(chains, "tie", lambda cache, *counts: (tied.append(1), tie(cache, *counts)))
    cache, _ = feed(200)
    assert len(tied) == 1
    cache.extend(feed(9)[0])
    token = mx.ones((4, 1, 1, 8))
    for _ in range(200):
        mx.eval(cache.update_and_fetch(token, token))
    assert len(tied) == 2
    feed(300, 2)
    assert len(tied) > 2 + 300 / 40  # chunks of several tokens are not counted


def test_failed_count_leaves_offset(ungated, monkeypatch, caplog):
    wanted = feed(70)[0].offset.tolist()
    ungated("offset-chain")
    monkeypatch.setattr(chains, "tie", lambda cache, *counts: 1 / 0)
    assert feed(70)[0].offset.tolist() == wanted
    assert feed(70, 2)[0].offset.tolist() == [139, 140]
    assert "offset-chain failed" in caplog.text


def test_prompt_chunk_starts_no_count(ungated):
    """A count holds the offset, whose buffer MLX could not reuse then."""
    ungated("offset-chain")
    cache, _ = feed(3, 48)
    assert vars(cache)[chains.COUNT] is None
    token = mx.ones((2, 1, 1, 8))
    for _ in range(2):  # the second token finds the first one complete
        cache.update_and_fetch(token, token)
    assert vars(cache)[chains.COUNT] is not None


def test_changing_rows_leave_no_chain(ungated):
    ungated("offset-chain")
    cache, sizes = feed(40)[0], []
    token = mx.ones((2, 1, 1, 8))
    for _ in range(12):
        cache.filter(mx.array([0]))
        cache.extend(module.BatchKVCache.merge([one(5)]))
        for _ in range(2 * chains.CUT_INTERVAL):
            mx.eval(cache.update_and_fetch(token, token))
        sizes.append(count_edges(cache.offset))
    assert max(sizes[6:]) <= max(sizes[:6])


def one(tokens):
    cache = module.KVCache()
    cache.update_and_fetch(mx.ones((1, 1, tokens, 8)), mx.ones((1, 1, tokens, 8)))
    return cache


def test_keys_are_not_copied(ungated):
    ungated("offset-chain")
    cache, _ = feed(1, 1000)
    token = mx.zeros((2, 1, 1, 8))
    mx.eval(cache.keys, cache.values, token)
    held = cache.keys.nbytes
    for _ in range(23):  # up to position 1024, where the release itself allocates a new buffer
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        sums = [part.sum() for part in cache.update_and_fetch(token, token)]
        mx.eval(sums)
        assert mx.get_peak_memory() - before < held / 2
