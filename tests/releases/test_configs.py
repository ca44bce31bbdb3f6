"""``nested-rope``, ``config-names``, ``spare-tensors``: what is read, what stays as released."""

from __future__ import annotations

import importlib
import inspect

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches import catalogue
from mlx_patches.patches.loading.config_names.patch import lfm2, nemotron_h
from mlx_patches.patches.loading.nested_rope.patch import old_names
from mlx_patches.patches.loading.nested_rope.probe import FLAT, NESTED, SCALING, SIZES, THETA
from mlx_patches.patches.loading.spare_tensors.probe import load, make, spare, weights_of

from .conftest import is_tested, verdict

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.skipif(not is_tested("mlx-lm"), reason="mlx-lm is not tested here")
KNOWN = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=0.0)
    for name in ("rope_theta", "rope_scaling", "partial_rotary_factor")
}


def args_of(name, **rope):
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return module.ModelArgs.from_dict({"model_type": name, **SIZES, **rope})


@pytest.fixture
def nested(ungated):
    ungated(catalogue.builtin().get("nested-rope"))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_both_configs_are_the_same(name, nested):
    new, old = args_of(name, **NESTED), args_of(name, **FLAT)
    scaling = {name: value for name, value in new.rope_scaling.items() if name != "type"}
    assert (new.rope_theta, scaling) == (THETA, {**SCALING, "rope_theta": THETA})
    assert (old.rope_theta, old.rope_scaling) == (THETA, SCALING)


def test_a_rope_of_no_scaling_has_none(nested):
    plain = {"rope_theta": THETA, "rope_type": "default"}
    assert args_of("llama", rope_parameters=plain).rope_scaling is None
    assert args_of("llama", rope_parameters={"rope_theta": THETA}).rope_theta == THETA


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_parameters": None},
        {"rope_parameters": {}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"rope_parameters": {"full_attention": 3}},
        {"rope_theta": 123.0, "rope_parameters": {"rope_theta": 456.0, "rope_type": "default"}},
    ],
)
def test_what_has_no_new_names_is_read_as_released(rope, ungated):
    released = args_of("llama", **rope)
    ungated(catalogue.builtin().get("nested-rope"))
    assert args_of("llama", **rope) == released


def test_a_class_that_knows_the_new_name_reads_it_itself(nested):
    if not source_file("mlx_lm.models.ministral3"):
        pytest.skip("no such class here")
    module = importlib.import_module("mlx_lm.models.ministral3")
    given = {"rope_theta": THETA, "rope_type": "default"}
    config = {"model_type": "ministral3", **SIZES, "rope_parameters": given}
    assert module.ModelArgs.from_dict(config).rope_parameters == given


@pytest.mark.parametrize(
    ("nested", "config", "wanted"),
    [
        ({"rope_theta": 1.0, "type": "yarn", "factor": 2}, {}, True),
        ({"rope_theta": 1.0, "rope_type": "default", "mrope_section": [1]}, {}, False),
        ({"rope_theta": 1.0, "rope_type": "yarn"}, {"rope_scaling": {"type": "su"}}, False),
    ],
)
def test_a_scaling_is_what_the_rope_parameters_say(nested, config, wanted):
    old = old_names({**config, "rope_parameters": nested}, KNOWN)
    assert old["rope_theta"] == 1.0
    # Some classes ask for ``type``.
    assert old.get("rope_scaling") == ({"type": "yarn", **nested} if wanted else None)


def test_the_part_that_is_rotated_is_read_where_the_class_has_it():
    given = {"rope_theta": 1.0, "partial_rotary_factor": 0.5}
    params = {"rope_parameters": given}
    assert old_names(params, KNOWN) == given
    own = {**params, "partial_rotary_factor": 0.25}
    assert old_names(own, KNOWN) == {"rope_theta": 1.0}
    assert old_names(params, {"rope_theta": KNOWN["rope_theta"]}) == {"rope_theta": 1.0}


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"hybrid_override_pattern": "M*-"}, ("M*-", 3)),
        ({"hybrid_override_pattern": "M*-", "num_hidden_layers": 3}, ("M*-", 3)),
        ({"layers_block_type": ["mamba", "moe"]}, (["M", "E"], 2)),
        ({"layer_types": ["linear_attention", "full_attention"]}, (["M", "*"], 2)),
        ({}, (None, None)),
    ],
)
def test_nemotrons_layers_are_named(params, wanted):
    given = nemotron_h(params)
    assert (given.get("hybrid_override_pattern"), given.get("num_hidden_layers")) == wanted


def test_a_layer_of_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="of another world"):
        nemotron_h({"layer_types": ["of another world", "mlp"]})


def test_a_config_that_lacks_a_name_is_no_failure_of_the_patch(ungated):
    patch = catalogue.builtin().get("config-names")
    manager = ungated(patch)
    module = importlib.import_module("mlx_lm.models.lfm2")
    for _ in range(4):
        with pytest.raises(TypeError, match="missing"):
            module.ModelArgs.from_dict({"model_type": "lfm2"})
    assert "from_dict" in vars(module.ModelArgs)
    assert manager is not None


def test_a_width_that_is_named_stays():
    assert lfm2({"block_ff_dim": 8, "intermediate_size": 9})["block_ff_dim"] == 8
    assert lfm2({"intermediate_size": 9})["block_ff_dim"] == 9
    assert "block_ff_dim" not in lfm2({})


@pytest.mark.parametrize("family", ["granite", "granitemoehybrid", "gemma4_text"])
def test_a_tensor_that_nobody_knows_still_ends_the_load(family, ungated):
    if not source_file(f"mlx_lm.models.{family}"):
        pytest.skip("no such model here")
    ungated(catalogue.builtin().get("spare-tensors"))
    model = make(family)
    weights = {name: value + 0 for name, value in weights_of(model).items()}
    load(model, {**weights, **spare(model)})
    with pytest.raises(ValueError, match="nobodys"):
        load(model, {**weights, "model.nobodys.weight": mx.zeros(1)})
    missing = dict(list(weights.items())[1:])
    with pytest.raises(ValueError, match=r"[Mm]issing"):
        load(model, missing)


@pytest.mark.parametrize("family", ["granite", "granitemoehybrid"])
def test_a_head_of_its_own_is_kept(family, ungated):
    if not source_file(f"mlx_lm.models.{family}"):
        pytest.skip("no such model here")
    patch = catalogue.builtin().get("spare-tensors")
    if not any(verdict(patch, target).ok for target in patch.targets):
        pytest.skip("this release reads checkpoints by itself, and drops the head")
    ungated(patch)
    model = make(family)
    nn = importlib.import_module("mlx.nn")
    model.lm_head = nn.Linear(4, 4, bias=False)
    weights = weights_of(model)
    weights["lm_head.weight"] = mx.ones((4, 4))
    load(model, weights)
    assert mx.array_equal(model.lm_head.weight, mx.ones((4, 4)))
