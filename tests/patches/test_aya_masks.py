from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.masks.aya_masks.patch import Masks, select_mask
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import or_skip

TEXT = [list(range(1, 8))]


@pytest.fixture
@or_skip()
def model():
    return tiny("mlx-vlm", "aya_vision")


def list_outputs(model) -> list:
    cache, width = model.make_cache(), model.module.config.hidden_size
    return [
        model.call(TEXT, None),
        model.call(TEXT, cache),
        model.module.model(mx.array(TEXT), None, mx.ones((7, 7), dtype=mx.bool_)),
        model.module.model(None, mx.ones((1, 5, width)), None, model.make_cache()),
    ]


def test_solo_within_window_is_bit_identical(model, ungated):
    before = list_outputs(model)
    ungated("aya-masks")
    assert all(map(mx.array_equal, before, list_outputs(model)))


def test_each_layer_kind_gets_its_mask():
    masks = Masks("full", "sliding")
    for sliding, expected in ((True, "sliding"), (False, "full")):
        layer = SimpleNamespace(use_sliding_window=sliding)
        assert select_mask(layer, masks) == expected
        assert select_mask(layer, "causal") == "causal"
