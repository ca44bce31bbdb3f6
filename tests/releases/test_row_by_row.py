"""Row by row beyond the probe: rows that are all padding, and what is no row's own."""

from __future__ import annotations

import pytest

from mlx_patches.lab import Family, NotBuilt
from mlx_patches.lab.build import build
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches.models import row_by_row
from mlx_patches.probes.rope_deltas import out_of_the_way

mx = pytest.importorskip("mlx.core")


@pytest.mark.parametrize("family", ["cohere_compass", "ernie4_5_moe_vl"])
def test_a_piece_that_is_all_padding(family):
    pytest.importorskip("mlx_vlm")
    try:
        model = build(Family("mlx-vlm", family))
    except NotBuilt as reason:
        pytest.skip(str(reason))
    with out_of_the_way(("row-by-row", "offset-alias", "rotating-max-size", "mask-list")):
        cell = SCENARIOS["chunked-batch"](model)
    if cell.verdict == "n/a":
        pytest.skip(cell.detail)
    assert cell.verdict == "green", cell.detail


def test_features_of_the_whole_batch_are_left_to_the_release():
    class Layer:
        offset = mx.array([1, 2])

    seen = []

    def call(model, inputs, cache=None, **kwargs):
        seen.append(inputs.shape)
        return "whole"

    whole = row_by_row.one_at_a_time(call)
    tokens = mx.zeros((2, 3), mx.int32)
    given = {row_by_row.FEATURES: [mx.zeros((4, 8))]}
    assert whole(None, tokens, cache=[Layer()], **given) == "whole"
    assert seen == [(2, 3)]
