import functools

import mlx.core as mx
import pytest

from mlx_patches.lab import engine
from mlx_patches.lab.rows import LENGTHS, decode, prefill, rows_of
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches.models.minimax_m3_batch import patch as minimax_m3_batch
from mlx_patches.patches.models.minimax_m3_batch.patch import RowBlocks
from mlx_patches.patches.models.minimax_m3_batch.probe import build_model

BATCHED = (
    *("left-padded", "equal-lengths", "chunked-batch", "merge", "extend", "filter"),
    *("extract-early", "extract-late", "trim", "state", "history", "last-chunk"),
    *("engine", "processors"),
)
# Settings of sparse layers: several of them in a row, forced first blocks, both kinds of scores.
FEW = {"sparse_block_size": 3, "sparse_topk_blocks": 2, "sparse_attention_freq": [1, 1, 1, 1]}
SPARSE = (
    {**FEW, "sparse_init_block": 1},
    {**FEW, "sparse_block_size": 4, "sparse_score_type": "lse"},
    {"sparse_block_size": 1, "sparse_topk_blocks": 1, "sparse_attention_freq": [0, 1, 0, 1]},
)


@functools.cache
def sparse_model(index):
    """One model for all scenarios: they share its solo runs."""
    return build_model(**SPARSE[index])


@pytest.fixture
def language():
    return pytest.importorskip(minimax_m3_batch.MODULE)


@pytest.fixture
def patched(language, ungated):
    ungated("minimax-m3-batch")
    return language


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize(
    "index",
    [
        pytest.param(0, id="init"),
        pytest.param(1, id="lse", marks=pytest.mark.slow),
        pytest.param(2, id="single", marks=pytest.mark.slow),
    ],
)
def test_batch_equals_solo(patched, index, name):
    cell = SCENARIOS[name](sparse_model(index))
    assert cell.verdict == "green", cell.detail


def test_state_of_other_calls_is_ignored(patched):
    model = build_model()
    rows = rows_of(model, LENGTHS)
    cache = prefill(model, rows)
    model.module._rope_deltas = mx.full((2, 1), 7)
    model.module._position_ids = mx.full((3, 99), 5)
    decode(model, rows, cache, 3)
    logits_of_rows = [row.logits[row.fed - 1] for row in rows]
    for row, logits in zip(rows, logits_of_rows, strict=True):
        own = model.make_cache()
        solo = model.call([list(row.text[: row.fed])], own)[0, -1]
        assert mx.allclose(logits, solo, atol=1e-5)


def test_long_rows_gather_block_keys(patched, monkeypatch):
    model = sparse_model(2)
    attend, gathered = patched.MiniMaxAttention._sparse_decode_attention, []

    def record_attention(attention, queries, keys, values, block_indices, *args):
        out = attend(attention, queries, keys, values, block_indices, *args)
        gathered.append(isinstance(block_indices, RowBlocks) and out is not None)
        return out

    monkeypatch.setattr(patched.MiniMaxAttention, "_sparse_decode_attention", record_attention)
    cell = SCENARIOS["left-padded"](model)
    assert cell.verdict == "green", cell.detail
    assert any(gathered)


def test_even_decode_gets_no_positions(patched, monkeypatch):
    model = build_model(**FEW)
    rows = rows_of(model, [LENGTHS[-1]] * 3)
    cache = prefill(model, rows)

    def refuse(*args, **kwargs):
        raise AssertionError("an even step needs no repair")

    for name in ("count_positions", "RowBlocks", "shift"):
        monkeypatch.setattr(minimax_m3_batch, name, refuse)
    decode(model, rows, cache, 4)
    assert all(
        logits.shape == (model.vocabulary,) for row in rows for logits in row.logits.values()
    )


def test_solo_is_bit_identical(language, ungated):
    model = build_model(**FEW)
    table = [list(rows_of(model, [14])[0].text[:14])]

    def say():
        cache = model.make_cache()
        return mx.concatenate([model.call(table, cache), model.call([[3]], cache)], axis=1)

    before = say()
    ungated("minimax-m3-batch")
    assert mx.array_equal(say(), before).item()


def test_given_mask_and_positions_are_kept(patched, monkeypatch):
    model = build_model()
    monkeypatch.setattr(minimax_m3_batch, "count_positions", None)
    table = mx.array([[1, 2, 3], [4, 5, 6]])
    places = mx.broadcast_to(mx.arange(3), (2, 3))
    plain = model.call(table, engine.batch_cache(model, [0, 0]), position_ids=places)
    masked = model.call(table, engine.batch_cache(model, [0, 0]), mask=mx.ones((2, 3), mx.bool_))
    assert mx.allclose(plain[:, -1], masked[:, -1], atol=1e-5)


@pytest.mark.parametrize(("axis", "shape"), ((2, (2, 1, 5, 1)), (3, (2, 1, 1, 5))))
def test_shift_moves_each_row_by_its_columns(axis, shape):
    array = mx.broadcast_to(mx.arange(5).reshape(shape[1:]), shape)
    rows = minimax_m3_batch.shift(array, mx.array([[[0]], [[2]]]), axis).reshape(2, 5)
    assert rows.tolist() == [[0, 1, 2, 3, 4], [2, 3, 4, 4, 4]]


def test_block_columns_follow_padding():
    picked = RowBlocks(mx.array([[[0, 2]], [[1, -1]]]), mx.array([[0], [3]]))
    columns = minimax_m3_batch.find_columns(picked, 2)
    assert columns.tolist() == [[[0, 1, 4, 5]], [[5, 6, -1, -1]]]


def test_empty_batch_is_restored(patched):
    kind = patched.MiniMaxM3BatchKVCache
    cache = kind([0, 2])
    restored = kind.__new__(kind)
    restored.state = cache.state
    restored.meta_state = cache.meta_state
    assert restored.empty()
    assert restored.offset.tolist() == [0, -2]
    assert restored.left_padding.tolist() == [0, 2]
