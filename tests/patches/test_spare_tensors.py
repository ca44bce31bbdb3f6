import importlib

import mlx.core as mx
import pytest

from mlx_patches.patches.loading.spare_tensors.probe import load, make, spare, weights_of

from ..releases.conftest import is_needed
from ..releases.models import module_or_skip


@pytest.mark.parametrize("family", ["granite", "granitemoehybrid", "gemma4_text"])
def test_unknown_tensor_still_fails(family, ungated):
    module_or_skip(f"mlx_lm.models.{family}")
    ungated("spare-tensors")
    model = make(family)
    weights = {name: value + 0 for name, value in weights_of(model).items()}
    load(model, {**weights, **spare(model)})
    with pytest.raises(ValueError, match="nobodys"):
        load(model, {**weights, "model.nobodys.weight": mx.zeros(1)})
    missing = dict(list(weights.items())[1:])
    with pytest.raises(ValueError, match=r"[Mm]issing"):
        load(model, missing)


@pytest.mark.parametrize("family", ["granite", "granitemoehybrid"])
def test_own_head_is_kept(family, ungated):
    module_or_skip(f"mlx_lm.models.{family}")
    if not is_needed("spare-tensors"):
        pytest.skip("this release reads checkpoints by itself, and drops the head")
    ungated("spare-tensors")
    model = make(family)
    nn = importlib.import_module("mlx.nn")
    model.lm_head = nn.Linear(4, 4, bias=False)
    weights = weights_of(model)
    weights["lm_head.weight"] = mx.ones((4, 4))
    load(model, weights)
    assert mx.array_equal(model.lm_head.weight, mx.ones((4, 4)))
