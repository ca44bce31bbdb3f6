"""Deepstack features beyond the probe: batches that are split, the prefix cache, and refusals."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions import deepstack_rows
from mlx_patches.patches.positions.deepstack_rows import FEATURES, MASK

mx = pytest.importorskip("mlx.core")


def image(mask, start=1):
    """The arguments of prompts with images: features count up from ``start``."""
    count = sum(map(sum, mask))
    layers = [mx.arange(start, start + count)[:, None] * scale for scale in (1.0, 10.0)]
    return {MASK: mx.array(mask, mx.bool_), FEATURES: layers, "more": 7}


def test_features_are_where_their_tokens_are():
    rows = deepstack_rows.aligned([image([[0, 1, 1]]), None, {"more": 8}], [3, 2, 1])
    features = [row[FEATURES][..., 0].tolist() for row in rows]
    assert features == [[[[0, 0], [1, 10], [2, 20]]], [[[0, 0]] * 2], [[[0, 0]]]]
    assert [row[MASK].tolist() for row in rows] == [[[False, True, True]], [[False] * 2], [[False]]]
    assert [row.get("more") for row in rows] == [7, None, 8]


def test_lists_come_back():
    (row,) = deepstack_rows.aligned([image([[0, 1, 1], [1, 0, 0]])], [3])
    lists = deepstack_rows.listed(row[FEATURES], row[MASK])
    assert [one[:, 0].tolist() for one in lists] == [[1, 2, 3], [10, 20, 30]]


def test_a_prompt_whose_features_are_not_its_own_is_left_alone():
    rows = [image([[0, 1, 1]]), {**image([[0, 1, 1]]), MASK: mx.array([[True]])}]
    assert deepstack_rows.aligned(rows, [3, 1]) is rows
    text = [None, {MASK: mx.array([[True]]), FEATURES: None}]
    assert deepstack_rows.aligned(text, [3, 1]) is text


def test_a_batch_is_split_with_its_features():
    def apart(arguments, count):
        return [(arguments[FEATURES][row, :, 0, 0].tolist()) for row in range(count)]

    assert deepstack_rows.split(apart, image([[0, 1, 1], [1, 0, 0]]), 2) == [[0, 1, 2], [3, 0, 0]]


def test_sequences_of_the_prefix_cache_keep_everything_else():
    seen = []
    sequences = [("a", [1, 2], 9, image([[0, 1]]), "x", "y"), ("b", [3], 9, None, "x", "y")]
    deepstack_rows.mixed(lambda generator, given: seen.extend(given), None, sequences)
    assert [(*one[:3], *one[4:]) for one in seen] == [(*one[:3], *one[4:]) for one in sequences]
    assert [one[3][FEATURES].shape for one in seen] == [(1, 2, 2, 1), (1, 1, 2, 1)]
