import importlib

import mlx.core as mx
import pytest

from mlx_patches.patches.loading.adapter_tensors.probe import RANK, WIDTH, load_into, make

from ..releases.conftest import is_tested

pytestmark = pytest.mark.skipif(not is_tested("mlx-lm"), reason="mlx-lm is not tested here")
A, B = "layers.0.proj.lora_a", "layers.0.proj.lora_b"


@pytest.fixture
def load(ungated):
    ungated("adapter-tensors")
    return importlib.import_module("mlx_lm.tuner.utils").load_adapters


def test_misfits_are_refused(load):
    tensors = {A: mx.ones((WIDTH, RANK)), B: mx.ones((RANK + 1, WIDTH)), "other.m": mx.ones(1)}
    with pytest.raises(ValueError) as raised:
        load_into(load, make(), tensors)
    assert B in str(raised.value) and "other.m" in str(raised.value)
    assert A not in str(raised.value)
    with pytest.raises(ValueError, match="weight"):
        load_into(load, make(), {"layers.0.proj.linear.weight": mx.ones((WIDTH, WIDTH))})


def test_fitting_weights_are_loaded(load):
    model = make()
    load_into(load, model, {B: mx.ones((RANK, WIDTH))})
    assert mx.array_equal(model.layers[0].proj.lora_b, mx.ones((RANK, WIDTH)))
    model = make()
    weight = {"layers.0.proj.weight": mx.ones((WIDTH, WIDTH))}
    assert load_into(load, model, weight, fine_tune_type="full") is model
    assert mx.array_equal(model.layers[0].proj.weight, mx.ones((WIDTH, WIDTH)))


def test_missing_folder(load):
    with pytest.raises(FileNotFoundError):
        load(make(), "/nowhere/at/all")
