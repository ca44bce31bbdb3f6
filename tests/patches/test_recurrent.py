import copy
import importlib
import random
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.lab.cache_arrays import count_edges
from mlx_patches.patches.caches.recurrent import advance, contract, extract, masks, rows

from ..releases.conftest import is_installed

LM = is_installed("mlx-lm")
pytestmark = pytest.mark.skipif(not LM, reason="no mlx-lm, whose caches these are")
ArraysCache = importlib.import_module("mlx_lm.models.cache").ArraysCache if LM else None

PADDING = [4, 0, 2]
LENGTHS = [9, 5, 7]


def make_padded_batch(width=2):
    """Three rows with padding on both sides; each row's state is its number."""
    cache = ArraysCache(1)
    cache[0] = mx.broadcast_to(mx.arange(3)[:, None], (3, width))
    cache.left_padding, cache.lengths = mx.array(PADDING), mx.array(LENGTHS)
    return cache


def one_row():
    cache = ArraysCache(1)
    cache[0] = mx.full((1, 2), 7)
    return cache


def list_padding(cache):
    return {name: values.tolist() for name, values in contract.read_padding(cache).items()}


def raise_error(*_):
    raise ValueError("on purpose")


WHOLE = {"left_padding": PADDING, "lengths": LENGTHS}


def test_failed_calls_keep_padding_and_slots():
    cache, other = make_padded_batch(), make_padded_batch()
    with pytest.raises(ValueError, match="on purpose"):
        rows.filter_padding(raise_error, cache, mx.array([2, 0]))
    with pytest.raises(ValueError, match="on purpose"):
        rows.extend_padding(raise_error, cache, other)
    assert list_padding(cache) == list_padding(other) == WHOLE

    cache, other = ArraysCache(1), make_padded_batch()
    contract.remember_rows(cache, 2)
    with pytest.raises(ValueError, match="on purpose"):
        rows.extend_unwritten(raise_error, cache, other)
    assert cache.cache == [None]
    assert contract.count_rows(cache) == 2
    assert other[0][:, 0].tolist() == [0, 1, 2]


def test_failed_release_extend_keeps_padding(ungated):
    ungated("arrays-rows")
    cache, other = make_padded_batch(), make_padded_batch(width=3)
    with pytest.raises(ValueError):
        cache.extend(other)
    assert list_padding(cache) == list_padding(other) == WHOLE


def test_padding_follows_rows(ungated):
    ungated("arrays-rows")
    cache = make_padded_batch()
    cache.filter(mx.array([2, 0]))
    assert list_padding(cache) == {"left_padding": [2, 4], "lengths": [7, 9]}
    cache.extend(make_padded_batch())
    assert list_padding(cache) == {"left_padding": [2, 4, *PADDING], "lengths": [7, 9, *LENGTHS]}


@pytest.mark.parametrize("padded_first", [True, False])
def test_joining_rows_without_padding(ungated, padded_first):
    ungated("arrays-rows")
    sides = [make_padded_batch(), one_row()][:: 1 if padded_first else -1]
    cache, other = sides
    before = list_padding(other)
    cache.extend(other)
    left, lengths = list_padding(cache).values()
    one = -1 if padded_first else 0
    assert left.pop(one) == 0
    assert lengths.pop(one) > 10**6
    assert (left, lengths) == (PADDING, LENGTHS)
    assert list_padding(other) == before


def test_unpadded_rows_get_no_array(ungated):
    ungated("arrays-rows")
    cache = one_row()
    cache.extend(one_row())
    cache.filter(mx.array([1]))
    assert cache.left_padding is None
    assert getattr(cache, "lengths", None) is None


def extend_as_mlx_lm_0_31_2(cache, other):
    """If one side has no state, the result has only the rows of the other."""
    pairs = zip(cache.cache, other.cache, strict=True)
    cache.cache = [
        one if two is None else two if one is None else mx.concatenate([one, two])
        for one, two in pairs
    ]


@pytest.mark.parametrize(
    ("unwritten_first", "numbers"), [(True, [0, 0, 0, 1, 2]), (False, [0, 1, 2, 0, 0])]
)
def test_rows_without_state_get_zeros(unwritten_first, numbers):
    unwritten = ArraysCache(1)
    contract.remember_rows(unwritten, 2)
    cache, other = [unwritten, make_padded_batch()][:: 1 if unwritten_first else -1]
    before = list(other.cache)
    rows.extend_unwritten(extend_as_mlx_lm_0_31_2, cache, other)
    assert cache[0][:, 0].tolist() == numbers
    assert contract.count_rows(cache) == 5
    assert all(now is then for now, then in zip(other.cache, before, strict=True))


class MambaCache(ArraysCache or object):
    def __init__(self, left_padding=None):
        super().__init__(size=2, left_padding=left_padding)


@pytest.mark.skipif(not hasattr(ArraysCache, "merge"), reason="rows are not merged")
def test_mamba_merge_keeps_class():
    solo = [MambaCache(), MambaCache()]
    for number, row in enumerate(solo):
        row[0] = row[1] = mx.full((1, 2), number)
    merge = ArraysCache.merge.__func__
    assert merge(MambaCache, solo).left_padding.ndim == 0  # the defect
    batch = extract.drop_scalar_padding(merge(MambaCache, solo))
    assert batch.left_padding is None
    row = extract.restore_class(ArraysCache.extract(batch, 1), batch)
    assert type(row) is MambaCache
    assert [state.tolist() for state in row.cache] == [[[1, 1]]] * 2


def test_rows_are_counted():
    cache = ArraysCache(2)
    assert contract.count_rows(cache) == 1
    contract.remember_rows(cache, 4)
    assert contract.count_rows(copy.deepcopy(cache)) == 4
    cache.left_padding = mx.array(PADDING)
    assert contract.count_rows(cache) == 3
    cache[1] = mx.zeros((2, 1))
    assert contract.count_rows(cache) == 2

    cache = ArraysCache(1)
    cache.left_padding = mx.array(2)
    assert contract.read_padding(cache) == {}
    assert contract.count_rows(cache) == 1

    sides = [ArraysCache(1), ArraysCache(1)]
    contract.remember_rows(sides[0], 2)
    rows.extend_unwritten(extend_as_mlx_lm_0_31_2, *sides)
    assert contract.count_rows(sides[0]) == 3
    rows.remember_filtered(sides[0], mx.array([2]))
    assert contract.count_rows(sides[0]) == 1


def test_extracted_row_has_no_batch_state():
    batch = make_padded_batch()
    contract.remember_rows(batch, 3)
    row = contract.copy_as_row(batch, [batch[0][1:2]])
    assert type(row) is type(batch)
    assert list_padding(row) == {}
    assert contract.ROWS not in vars(row)
    assert contract.count_rows(row) == 1
    assert list_padding(batch) == WHOLE


class Uncounted:
    """A cache of a model that does not count its tokens, as before mlx-lm 0.30.4."""

    def __init__(self, padding):
        self.left_padding = mx.array(padding)

    def mask(self, N):
        return masks.mask_each_chunk(lambda cache, N: None, self, N)


def test_decode_reads_no_device(device_reads):
    cache = Uncounted([7, 0, 2])
    chunk_masks = [cache.mask(3) for _ in range(3)]
    assert all(mask is not None for mask in chunk_masks)
    assert len(device_reads) == 3
    device_reads.clear()
    assert cache.left_padding is None
    assert [cache.mask(1) for _ in range(4)] == [None] * 4
    assert not device_reads

    cache = Uncounted([0, 0])
    assert cache.mask(3) is None
    assert cache.left_padding is None
    device_reads.clear()
    assert cache.mask(1) is None
    assert not device_reads


def test_no_chunk_waits_for_device(monkeypatch):
    """The array that is read was made from a list, so no operation has to finish first."""
    cache = Uncounted([7, 0, 2])
    monkeypatch.setattr(mx.array, "__sub__", raise_error)
    for _ in range(3):
        cache.mask(3)
    assert cache.left_padding is None


counts = pytest.mark.skipif(
    not hasattr(ArraysCache, "advance"),
    reason="this release's caches do not count, or count without a chain",
)


def make_padded(left=(3, 0), lengths=(9, 5)):
    cache = ArraysCache(1, left_padding=list(left))
    cache[0] = mx.zeros((len(left), 1))
    cache.lengths = mx.array(list(lengths))
    return cache


def numbers(cache):
    read = cache.left_padding, cache.lengths
    return [None if values is None else values.tolist() for values in read]


def live(seed):
    choose = random.Random(seed)
    cache = make_padded()
    seen = []
    for _ in range(120):
        rows = cache[0].shape[0]
        act = choose.choice(["advance"] * 6 + ["filter", "extend", "prepare", "copy", "finalize"])
        if act == "advance":
            cache.advance(choose.randrange(1, 5))
        elif act == "filter" and rows > 1:
            kept = mx.array(sorted(choose.sample(range(rows), rows - 1)))
            cache.left_padding = cache.left_padding[kept]
            cache.lengths = cache.lengths[kept]
            cache[0] = cache[0][kept]
        elif act == "extend" and rows < 6:
            other = make_padded()
            other.advance(2)
            cache.left_padding = mx.concatenate([cache.left_padding, other.left_padding])
            cache.lengths = mx.concatenate([cache.lengths, other.lengths])
            cache[0] = mx.concatenate([cache[0], other[0]])
        elif act == "prepare":
            cache.lengths = mx.array([choose.randrange(9) for _ in range(rows)])
        elif act == "copy":
            cache = copy.copy(cache)
        elif act == "finalize" and choose.random() < 0.2:
            cache.left_padding = mx.array([0] * rows)
        seen.append(numbers(cache))
    return seen


@counts
@pytest.mark.parametrize("seed", range(4))
def test_numbers_equal_release(seed, ungated):
    before = live(seed)
    manager = ungated("arrays-advance")
    assert live(seed) == before
    manager.restore()


@counts
def test_patch_toggled_during_count(ungated):
    cache = make_padded()
    first = ungated("arrays-advance")
    cache.advance(2)
    first.restore()
    cache.advance(3)  # by the release, in place: the array object stays the same
    second = ungated("arrays-advance")
    cache.advance(1)
    assert numbers(cache) == [[-3, -6], [3, -1]]
    second.restore()


@counts
def test_counts_are_kept_apart(ungated):
    ungated("arrays-advance")
    cache = make_padded()
    cache.advance(1)
    other = copy.copy(cache)
    other.advance(5)
    cache.advance(1)
    assert numbers(cache) == [[1, -2], [7, 3]]
    assert numbers(other) == [[-3, -6], [3, -1]]

    cache = make_padded()
    cache.advance(1)
    left = cache.left_padding
    cache.advance(1)
    assert left.tolist() == [2, -1]

    cache = ArraysCache(1)
    cache[0] = mx.zeros((2, 1))
    cache.advance(1)
    assert numbers(cache) == [None, None]
    assert advance.NOTE not in vars(cache)


@counts
def test_step_adds_no_node(ungated):
    cache = make_padded()
    cache.advance(1)
    before = count_edges(cache.left_padding, cache.lengths)
    ungated("arrays-advance")
    cache = make_padded()
    cache.advance(1)
    assert count_edges(cache.left_padding, cache.lengths) == before


@counts
def test_failed_advance_keeps_padding():
    def failing(cache, N):
        cache.left_padding = None
        raise ValueError("on purpose")

    cache = make_padded()
    with pytest.raises(ValueError, match="on purpose"):
        advance.advance_from_start(object(), failing, cache, 1)
    assert numbers(cache) == [[3, 0], [9, 5]]


@counts
def test_changing_rows_leave_no_chain(ungated):
    """As in a batch that is never empty, because a new request joins every few steps."""
    ungated("arrays-advance")
    cache, sizes = make_padded(), []
    for _ in range(12 * advance.CHANGES):
        cache[0] = cache[0] + 1
        cache.advance(1)
        mx.eval(cache[0])
        kept = mx.array([0])
        cache.left_padding = mx.concatenate([cache.left_padding[kept], mx.array([0])])
        cache.lengths = mx.concatenate([cache.lengths[kept], mx.array([9])])
        sizes.append(count_edges(cache.left_padding, cache.lengths))
    half = len(sizes) // 2
    assert max(sizes[half:]) <= max(sizes[:half])


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"arrays-advance": ((SimpleNamespace(left_padding=None, lengths=None), 3), {})}
