import importlib

import mlx.core as mx
import pytest

from mlx_patches.patches.models.phimoe_routing import patch as phimoe_routing
from mlx_patches.patches.models.phimoe_routing import probe as phimoe

from ..releases.models import present

PHIMOE = present("mlx_lm.models.phimoe", "mlx_vlm.models.phimoe.language")


@pytest.mark.parametrize("name", PHIMOE)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_phimoe_keeps_dtype(name, dtype, ungated):
    ungated("phimoe-routing")
    block = phimoe.make(importlib.import_module(name))
    block.set_dtype(dtype)
    assert block(mx.ones((2, 5, 16), dtype)).dtype == dtype


@pytest.mark.parametrize(
    "gates",
    [
        [1.0, 0.999, 0.5, -3.0],
        [1.0, 1.0, 1.0, 1.0],
        [-1.0, -1.005, -1.01, -2.0],
        [5.0, 0.1, 0.0999, 0.0998],
        [0.001, -0.001, -8.0, 8.0],
    ],
)
def test_close_experts_share_weight(gates):
    chosen, weights = phimoe_routing.choose_experts(mx.array([gates]), 2)
    got = [0.0] * len(gates)
    for expert, weight in zip(chosen[0].tolist(), weights[0].tolist(), strict=True):
        got[expert] = weight
    assert len(set(chosen[0].tolist())) == 2
    assert sorted(got) == pytest.approx(sorted(phimoe.compute_weights(gates)), abs=1e-6)
