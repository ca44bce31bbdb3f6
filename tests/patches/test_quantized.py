"""The contract of quantized batch caches, affine and TurboQuant; see ``contract``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches._shared import quantized as contract
from mlx_patches.patches.caches.quantized import affine, turbo
from mlx_patches.patches.caches.quantized.probe import restored
from mlx_patches.probes.quantized_batches import BITS, WIDTH, Kind, feed

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core", reason="every release set has MLX")
PATCHES = catalogue.builtin()
CLASSES = {
    "batch-quantized": ("mlx_vlm.models.cache", "BatchQuantizedKVCache"),
    "batch-turbo-quant": ("mlx_vlm.turboquant", "BatchTurboQuantKVCache"),
}
PADDING, LENGTHS, TOKENS = [2, 0, 3], [4, 6, 3], 6


@pytest.fixture(params=CLASSES)
def kind(request, ungated):
    module, name = CLASSES[request.param]
    if not installed("mlx-vlm") or importlib.util.find_spec(module) is None:
        pytest.skip("this release has no such module")
    batch = getattr(importlib.import_module(module), name, None)
    if batch is None:
        pytest.skip(f"this release has no {name}")
    ungated(PATCHES.get(request.param))
    return Kind(batch)


@pytest.fixture
def batch(kind):
    return kind.batch(PADDING, TOKENS)


def assert_rows(cache, lengths):
    """The state in which every method must leave the cache."""
    assert (cache._idx - cache.left_padding).tolist() == lengths
    assert cache.offset.tolist() == lengths
    assert cache.size() == cache._idx


def test_a_prompt_leaves_the_rows_where_the_contract_says(batch):
    assert_rows(batch, LENGTHS)


def test_filter_keeps_rows_and_drops_the_padding_that_all_have(kind, batch):
    batch.filter(mx.array([2, 0]))
    assert_rows(batch, [3, 4])
    assert batch.size() == 4
    assert not kind.wrong(batch, [3, 4], rows=[2, 0])


def test_trim_takes_tokens_off_every_row_and_says_how_many(kind, batch):
    if not batch.is_trimmable():
        assert batch.trim(2) == 0
        return
    assert batch.trim(2) == 2
    assert_rows(batch, [2, 4, 1])
    assert not kind.wrong(batch, [2, 4, 1])
    assert batch.trim(100) == TOKENS - 2 + 1  # ``wrong`` fed one more token
    assert batch.size() == 0


def test_what_is_restored_goes_on_like_the_other(kind, batch):
    again = restored(batch)
    assert_rows(again, LENGTHS)
    other = kind.batch([1], 3)
    again.extend(other)
    again.filter(mx.array([1, 3]))
    assert again.extract(0).offset == 6
    assert not kind.wrong(again, [6, 2], rows=[1, 0])


def test_a_padded_prompt_may_follow_a_restored_history(kind, batch):
    again = restored(batch)
    again.prepare(lengths=[1, 3, 2], right_padding=[2, 0, 1])
    feed(again, list(enumerate(LENGTHS)), 3)
    again.finalize()
    assert_rows(again, [5, 9, 5])
    assert not kind.wrong(again, [5, 9, 5])


def test_a_batch_without_tokens_goes_through_every_method(kind):
    cache = kind.batch([2, 0, 1])
    cache.prepare(lengths=[1, 1, 1], right_padding=[0, 0, 0])
    cache.finalize()
    cache.filter(mx.array([0, 1]))
    cache.extend(kind.batch([1]))
    assert (cache.empty(), cache.size(), cache.nbytes) == (True, 0, 0)
    assert cache.left_padding.tolist() == [2, 0, 1]
    assert cache.extract(0).offset == 0
    again = restored(cache)
    assert again.empty()
    feed(again, [(0, -2), (1, 0), (2, -1)], 4)
    assert_rows(again, [2, 4, 3])
    assert not kind.wrong(again, [2, 4, 3])


def test_a_row_that_is_all_padding_joins_leaves_and_comes_back(kind):
    cache = kind.batch([0], 3)
    cache.extend(kind.batch([0]))
    assert_rows(cache, [3, 0])
    assert not kind.wrong_alone(cache.extract(1), 1, 0)
    cache.filter(mx.array([1]))
    assert_rows(cache, [0])
    assert cache.size() == 0
    feed(cache, [(0, 0)], 2)
    assert not kind.wrong(cache, [2], rows=[0])


def test_a_prompt_without_right_padding_moves_no_array(kind, batch):
    parts = leaves(batch)
    batch.prepare(lengths=[1, 1, 1], right_padding=[0, 0, 0])
    batch.finalize()
    assert all(one is two for one, two in zip(parts, leaves(batch), strict=True))


@contextlib.contextmanager
def without_reads(monkeypatch):
    """Reading the values of any array raises inside the block."""

    def read(*_):
        raise AssertionError("a value was read from the device")

    with monkeypatch.context() as patched:
        for name in ("item", "tolist", "__bool__", "__int__", "__float__"):
            patched.setattr(mx.array, name, read)
        yield


def test_a_decode_step_reads_nothing_from_the_device(kind, batch, ungated, monkeypatch):
    ungated(PATCHES.get("quantized-masks"))
    feed(batch, list(enumerate(LENGTHS)), 1)
    step = mx.ones((3, 2, 1, WIDTH))
    with without_reads(monkeypatch):
        with pytest.raises(AssertionError, match="device"):
            batch.offset.tolist()
        batch.make_mask(1, return_array=False, window_size=None)
        batch.update_and_fetch(step, step)
        batch.size()
        assert batch.state is not None
        if not kind.turbo:
            assert batch.nbytes


def leaves(cache):
    from mlx.utils import tree_flatten

    return [part for _, part in tree_flatten((cache.keys, cache.values))]


def test_one_rows_mask_reaches_attention_as_it_is(ungated):
    """A row alone gets no added graph node: its mask broadcasts over groups of heads."""
    from mlx_patches.patches.masks.quantized_masks.patch import add_group_axis, attend

    mask = mx.ones((1, 1, 2, 6), mx.bool_)
    assert add_group_axis(mask, 2) is mask
    packed = mx.quantize(mx.ones((1, 2, 6, WIDTH)), group_size=WIDTH, bits=BITS)
    seen = attend(lambda *args: args[4], mx.ones((1, 4, 2, WIDTH)), packed, packed, 1.0, mask)
    assert seen is mask


@pytest.mark.parametrize("padding", [[0, 0], [1, 0]])
def test_qwens_decode_step_has_a_mask_where_a_row_has_padding(ungated, padding):
    name = "mlx_vlm.models.qwen3_5.language"
    if not installed("mlx-vlm") or importlib.util.find_spec("mlx_vlm.turboquant") is None:
        pytest.skip("this release has no quantized batches")
    language = importlib.import_module(name)
    if not hasattr(language, "_create_qwen3_5_attention_mask"):
        pytest.skip("this release makes its masks elsewhere")
    kind = Kind(importlib.import_module("mlx_vlm.models.cache").BatchQuantizedKVCache)
    cache = kind.batch(padding, 3)
    ungated(PATCHES.get("quantized-decode-mask"))
    mask = language._create_qwen3_5_attention_mask(mx.zeros((2, 1, 8)), cache)
    assert (mask is None) == (not any(padding))


def rows_beside_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks each part: rolls all rows alike, pads the wrong side, miscounts sizes, and more."""
    pad_left, copy_row, roll_rows = contract.pad_left, contract.copy_row, contract.roll_rows

    def add_left_padding(cache, padding):
        cache.left_padding = cache.left_padding + padding

    def pad_right(part, left):
        return pad_left(part[:, :, ::-1], left)[:, :, ::-1]

    broken = {
        "add_left_padding": add_left_padding,
        "roll_rows": lambda part, shifts: roll_rows(part, shifts * 0 + shifts.max()),
        "copy_row": lambda tree, row, start, end: copy_row(tree, row, 0, end - start),
        "pad_left": pad_right,
        "make_blank_rows": lambda part, rows: part[:0, :, :0],
        "size": lambda cache: int(cache._idx) + 1,
        "nbytes": lambda cache: sum(part.nbytes for part in cache.keys or ()),
        "read_right_padding": lambda cache: cache.__dict__["_right_padding"],
    }
    for name, function in broken.items():
        monkeypatch.setattr(contract, name, function)


def states_without_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_beside_their_places(monkeypatch)
    monkeypatch.setattr(turbo, "name_states", lambda cache, tree: tree)
    monkeypatch.setattr(turbo, "restore_codecs", lambda cache, text: None)


def values_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_beside_their_places(monkeypatch)
    dequantize = affine.dequantize_row

    def exchange(row):
        out = dequantize(row)
        if out is not row:
            out.keys, out.values = out.values, out.keys
        return out

    monkeypatch.setattr(affine, "dequantize_row", exchange)
    monkeypatch.setattr(affine, "count_tokens", lambda cache: int(cache.offset) + 1)


MUTANTS = {
    "batch-quantized": rows_beside_their_places,
    "batch-turbo-quant": states_without_codecs,
    "quantized-merge": values_for_keys,
}
