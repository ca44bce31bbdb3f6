"""What recurrent caches keep of their rows and padding, and what a step pays for it."""

from __future__ import annotations

import copy
import importlib

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.recurrent import contract, masks, rows

from .conftest import installed

if not installed("mlx-lm"):
    pytest.skip("no mlx-lm, whose caches these are", allow_module_level=True)
mx = pytest.importorskip("mlx.core")
ArraysCache = importlib.import_module("mlx_lm.models.cache").ArraysCache

PADDING = [4, 0, 2]
LENGTHS = [9, 5, 7]


def padded_batch(width=2):
    """Three rows with padding on both sides, the state of each is its number."""
    cache = ArraysCache(1)
    cache[0] = mx.broadcast_to(mx.arange(3)[:, None], (3, width))
    cache.left_padding, cache.lengths = mx.array(PADDING), mx.array(LENGTHS)
    return cache


def one_row():
    """A row without padding."""
    cache = ArraysCache(1)
    cache[0] = mx.full((1, 2), 7)
    return cache


def held(cache):
    return {name: values.tolist() for name, values in contract.read_padding(cache).items()}


def raise_error(*_):
    raise ValueError("on purpose")


WHOLE = {"left_padding": PADDING, "lengths": LENGTHS}


# -- arrays-rows -----------------------------------------------------------------------------


def test_a_filter_that_raises_leaves_the_padding():
    cache = padded_batch()
    with pytest.raises(ValueError, match="on purpose"):
        rows.filter_padding(raise_error, cache, mx.array([2, 0]))
    assert held(cache) == WHOLE


def test_an_extend_that_raises_leaves_the_padding_of_both():
    cache, other = padded_batch(), padded_batch()
    with pytest.raises(ValueError, match="on purpose"):
        rows.extend_padding(raise_error, cache, other)
    assert held(cache) == held(other) == WHOLE


def test_the_release_s_extend_raises_and_leaves_the_padding_of_both(ungated):
    ungated(catalogue.builtin().get("arrays-rows"))
    cache, other = padded_batch(), padded_batch(width=3)
    with pytest.raises(ValueError):
        cache.extend(other)
    assert held(cache) == held(other) == WHOLE


def test_padding_follows_its_rows(ungated):
    ungated(catalogue.builtin().get("arrays-rows"))
    cache = padded_batch()
    cache.filter(mx.array([2, 0]))
    assert held(cache) == {"left_padding": [2, 4], "lengths": [7, 9]}
    cache.extend(padded_batch())
    assert held(cache) == {"left_padding": [2, 4, *PADDING], "lengths": [7, 9, *LENGTHS]}


@pytest.mark.parametrize("padded_first", [True, False])
def test_rows_that_join_without_padding_have_none(ungated, padded_first):
    ungated(catalogue.builtin().get("arrays-rows"))
    sides = [padded_batch(), one_row()][:: 1 if padded_first else -1]
    cache, other = sides
    before = held(other)
    cache.extend(other)
    left, lengths = held(cache).values()
    alone = -1 if padded_first else 0
    assert left.pop(alone) == 0
    assert lengths.pop(alone) > 10**6
    assert (left, lengths) == (PADDING, LENGTHS)
    assert held(other) == before


def test_rows_without_padding_get_no_array(ungated):
    ungated(catalogue.builtin().get("arrays-rows"))
    cache = one_row()
    cache.extend(one_row())
    cache.filter(mx.array([1]))
    assert cache.left_padding is None
    assert getattr(cache, "lengths", None) is None


# -- arrays-extend ---------------------------------------------------------------------------


def test_an_extend_that_raises_leaves_the_slots_of_both():
    cache, other = ArraysCache(1), padded_batch()
    contract.remember_rows(cache, 2)
    with pytest.raises(ValueError, match="on purpose"):
        rows.extend_unwritten(raise_error, cache, other)
    assert cache.cache == [None]
    assert contract.count_rows(cache) == 2
    assert other[0][:, 0].tolist() == [0, 1, 2]


def test_extend_does_not_touch_the_other_side():
    cache, other = padded_batch(), ArraysCache(1)
    contract.remember_rows(other, 2)

    def extend(mine, theirs):
        mine.cache = [mx.concatenate([mine[0], theirs[0]])]

    rows.extend_unwritten(extend, cache, other)
    assert cache[0][:, 0].tolist() == [0, 1, 2, 0, 0]
    assert other.cache == [None]


# -- rows ------------------------------------------------------------------------------------


def test_rows_are_counted_by_states_then_padding_then_memory():
    cache = ArraysCache(2)
    assert contract.count_rows(cache) == 1
    contract.remember_rows(cache, 4)
    assert contract.count_rows(copy.deepcopy(cache)) == 4
    cache.left_padding = mx.array(PADDING)
    assert contract.count_rows(cache) == 3
    cache[1] = mx.zeros((2, 1))
    assert contract.count_rows(cache) == 2


def test_a_padding_that_is_one_number_for_all_is_no_row_s():
    cache = ArraysCache(1)
    cache.left_padding = mx.array(2)
    assert contract.read_padding(cache) == {}
    assert contract.count_rows(cache) == 1


def test_a_row_has_neither_the_padding_nor_the_rows_of_its_batch():
    batch = padded_batch()
    contract.remember_rows(batch, 3)
    row = contract.copy_as_row(batch, [batch[0][1:2]])
    assert type(row) is type(batch)
    assert held(row) == {}
    assert contract.ROWS not in vars(row)
    assert contract.count_rows(row) == 1
    assert held(batch) == WHOLE


# -- arrays-chunks ---------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch):
    """How often an array was read."""
    count = []
    for name in ("tolist", "item"):
        read = getattr(mx.array, name)
        monkeypatch.setattr(
            mx.array, name, lambda array, read=read: count.append(array) or read(array)
        )
    return count


class Uncounted:
    """A cache whose model does not count what it fed, as before mlx-lm 0.30.4."""

    def __init__(self, padding):
        self.left_padding = mx.array(padding)

    def mask(self, N):
        return masks.mask_each_piece(lambda cache, N: None, self, N)


def test_a_decode_step_reads_nothing(reads):
    cache = Uncounted([7, 0, 2])
    pieces = [cache.mask(3) for _ in range(3)]
    assert all(mask is not None for mask in pieces)
    assert len(reads) == 3
    reads.clear()
    assert cache.left_padding is None
    assert [cache.mask(1) for _ in range(4)] == [None] * 4
    assert not reads


def test_rows_without_padding_are_not_masked(reads):
    cache = Uncounted([0, 0])
    assert cache.mask(3) is None
    assert cache.left_padding is None
    reads.clear()
    assert cache.mask(1) is None
    assert not reads


def test_no_piece_waits_for_the_device(monkeypatch):
    """What is read was made from a list: no operation comes before it."""
    cache = Uncounted([7, 0, 2])
    monkeypatch.setattr(mx.array, "__sub__", raise_error)
    for _ in range(3):
        cache.mask(3)
    assert cache.left_padding is None
