from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.lab import image_scenarios
from mlx_patches.patches._shared.prompt_rows import change_prompts
from mlx_patches.patches.positions.deepstack_rows import patch as deepstack_rows
from mlx_patches.patches.positions.deepstack_rows.patch import FEATURES, MASK, TABLE

from ..releases.models import images_cell, or_skip


def image(mask, start=1):
    """The arguments of prompts with images: features count up from ``start``."""
    count = sum(map(sum, mask))
    layers = [mx.arange(start, start + count)[:, None] * scale for scale in (1.0, 10.0)]
    return {MASK: mx.array(mask, mx.bool_), FEATURES: layers, "more": 7}


def read_features(row, columns=slice(None)):
    """The first layer's features of the tokens in these columns."""
    return deepstack_rows.list_features(row[FEATURES][:, columns], row[TABLE])[0][:, 0].tolist()


def build(original, sequences):
    targets = change_prompts(deepstack_rows.number_features, [deepstack_rows.FEATURES])
    by_name = {target.name: target for target in targets}
    by_name["BatchGenerator._build_mixed_prompt_batch"].factory(original)(None, sequences)


def test_features_are_numbered_and_restored():
    given = [image([[0, 1, 1]]), None, {"more": 8}, image([[1, 0, 1]], start=5)]
    rows = deepstack_rows.number_features(given, [3, 2, 1, 3])
    assert [row[FEATURES].tolist() for row in rows[:3]] == [[[0, 1, 2]], [[0, 0]], [[0]]]
    assert [read_features(row) for row in rows] == [[1, 2], [], [], [5, 6]]
    assert [read_features(row, slice(1, None)) for row in rows] == [[1, 2], [], [], [6]]
    rows = rows[:3]
    assert [row[MASK].tolist() for row in rows] == [[[False, True, True]], [[False] * 2], [[False]]]
    assert [row.get("more") for row in rows] == [7, None, 8]

    (row,) = deepstack_rows.number_features([image([[0, 1, 1], [1, 0, 0]])], [3])
    lists = deepstack_rows.list_features(row[FEATURES], row[TABLE])
    assert [one[:, 0].tolist() for one in lists] == [[1, 2, 3], [10, 20, 30]]


def test_other_sequences_are_unchanged():
    rows = [image([[0, 1, 1]]), {**image([[0, 1, 1]]), MASK: mx.array([[True]])}]
    assert deepstack_rows.number_features(rows, [3, 1]) is rows
    text = [None, {MASK: mx.array([[True]]), FEATURES: None}]
    assert deepstack_rows.number_features(text, [3, 1]) is text
    empty = [{FEATURES: []}, None]
    assert deepstack_rows.number_features(empty, [3, 1]) is empty
    seen = []
    sequences = [("a", [1, 2], 9, {FEATURES: None}, "x"), ("b", [3], 9, None, "x")]
    build(lambda generator, given: seen.append(given), sequences)
    assert seen[0] is sequences


def test_features_follow_their_rows():
    def apart(arguments, count):
        return [{**arguments, FEATURES: arguments[FEATURES][row : row + 1]} for row in range(count)]

    rows = deepstack_rows.split_with_numbers(apart, image([[0, 1, 1], [1, 0, 0]]), 2)
    assert [read_features(row) for row in rows] == [[1, 2], [3]]
    again = deepstack_rows.number_features([image([[1]], start=9), *rows[::-1]], [1, 3, 3])
    assert [read_features(row) for row in again] == [[9], [3], [1, 2]]


def test_only_image_features_are_kept():
    tokens, rows, width = 2000, 4, 256
    mask = mx.zeros((1, tokens), mx.bool_)
    mask[:, :3] = True
    features = [mx.ones((3, width)) for _ in range(3)]
    given = [{MASK: mask, FEATURES: features}, *[None] * (rows - 1)]
    placed = deepstack_rows.number_features(given, [tokens] * rows)
    arrays = {id(one): one for row in placed for one in (row[MASK], row[FEATURES], *row[TABLE])}
    sparse = sum(one.nbytes for one in features)
    assert sum(one.nbytes for one in arrays.values()) <= sparse + 5 * rows * tokens


def test_prefix_cache_sequences_keep_other_values():
    seen = []
    sequences = [("a", [1, 2], 9, image([[0, 1]]), "x", "y"), ("b", [3], 9, None, "x", "y")]
    build(lambda generator, given: seen.extend(given), sequences)
    assert [(*one[:3], *one[4:]) for one in seen] == [(*one[:3], *one[4:]) for one in sequences]
    assert [one[3][FEATURES].tolist() for one in seen] == [[[0, 1]], [[0]]]


def test_lists_are_cut_to_chunk():
    # The prompt begins after 7 tokens of an earlier turn.
    cache = [SimpleNamespace(offset=7)]
    whole = image([[0, 1, 1, 0, 1]]) | {"cache": cache}
    first = deepstack_rows.slice_fed(whole, 2)
    assert first[MASK].tolist() == [[False, True]] and read_features(first) == [1]
    cache[0].offset += 2
    row = deepstack_rows.slice_fed(whole, 2)
    assert row[MASK].tolist() == [[True, False]] and read_features(row) == [2]
    assert deepstack_rows.slice_fed(whole, 5) == {}
    assert deepstack_rows.slice_fed(whole | {"cache": None}, 2) == {}
    assert deepstack_rows.slice_fed({MASK: whole[MASK], "cache": cache}, 2) == {}


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe"])
@or_skip()
def test_solo_chunked_prefill(family):
    image_scenarios.embedding_step()  # older releases are not measured
    cell = images_cell("features-solo", family)
    assert cell.verdict == "green" and cell.figure < 1e-5, cell.detail
