"""Recurrent families with quantized keys and values in their attention layers."""

from __future__ import annotations

import pytest

from mlx_patches.lab import Family, NotBuilt
from mlx_patches.lab.build import build
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.probes.rope_deltas import out_of_the_way

pytest.importorskip("mlx_vlm")
NEEDED = (
    "offset-alias",
    "mask-by-offset",
    "quantized-masks",
    "batch-quantized",
    "rope-deltas",
    "padding-nan",
)


@pytest.mark.parametrize("family", ["bailing_moe_linear", "jamba", "qwen3_5"])
def test_a_quantized_batch_stays_quantized(family):
    try:
        model = build(Family("mlx-vlm", family))
    except NotBuilt as reason:
        pytest.skip(str(reason))
    with out_of_the_way((*NEEDED, "recurrent-padding", "quantized-decode-mask")):
        cell = SCENARIOS["quantized-8"](model)
    if cell.verdict == "n/a":
        pytest.skip(cell.detail)
    assert cell.verdict == "green", cell.detail
