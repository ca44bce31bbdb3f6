import importlib
import inspect
import math
from typing import Any

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.loading.nested_rope.patch import find_old_names
from mlx_patches.patches.loading.nested_rope.probe import FLAT, LONG, NESTED, SCALING, THETA

from ..releases.models import module_or_skip

OWN = {"rope_theta": 20000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
KNOWN = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=0.0)
    for name in ("rope_theta", "rope_scaling", "partial_rotary_factor")
}
SECTIONS, DEFAULT = {"mrope_section": [2, 3, 3]}, {"type": "default"}
FULL = {"1": {"head_dim": 64, "num_key_value_heads": 2}}
INFINITE = [0.0, {"__float__": "Infinity"}]


@pytest.fixture
def nest_rope(ungated):
    ungated("nested-rope")


def read(family: str, config: dict[str, Any]) -> Any:
    for module, name in (
        (f"mlx_lm.models.{family}", "ModelArgs"),
        (f"mlx_vlm.models.{family}.config", "TextConfig"),
        (f"mlx_vlm.models.{family}.config", "ModelConfig"),
    ):
        if source_file(module) and hasattr(importlib.import_module(module), name):
            kind = getattr(importlib.import_module(module), name)
            break
    else:
        pytest.skip(f"this release has no {family}")
    if "text_config" in inspect.signature(kind).parameters:
        pytest.skip("it leaves the text config to another family")
    given = {"rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_pct", "num_experts"}
    needed = {
        field: 1
        for field, value in inspect.signature(kind).parameters.items()
        if value.default is value.empty and field not in given | {"rotary_emb_base"}
    }
    return kind.from_dict({**needed, **config})


@pytest.mark.parametrize(
    ("family", "config", "name", "value"),
    [
        ("qwen3_moe", {"num_local_experts": 4, "rope_theta": 1.0}, "num_experts", 4),
        ("mellum", {"num_local_experts": 4, "rope_theta": 1.0}, "num_experts", 4),
        ("exaone4", {"rope_parameters": OWN}, "rope_scaling", None),
        ("glm4_moe", {"rope_parameters": OWN}, "rope_scaling", None),
        ("gpt_neox", {"rope_parameters": OWN}, "rotary_pct", 0.25),
        ("gpt_neox", {"rope_parameters": OWN}, "rotary_emb_base", 20000.0),
        ("mistral3", {"rope_parameters": OWN, "use_qk_norm": False}, "rope_theta", 20000.0),
        ("glm4v_moe", {"rope_parameters": OWN}, "partial_rotary_factor", 0.25),
        ("glm4v", {"rope_parameters": OWN | SECTIONS}, "rope_scaling", OWN | SECTIONS | DEFAULT),
        ("gemma4_text", {"per_layer_config": FULL}, "num_global_key_value_heads", 2),
        ("gemma4", {"per_layer_config": FULL}, "global_head_dim", 64),
        ("mamba2", {"time_step_limit": INFINITE}, "time_step_limit", [0.0, math.inf]),
    ],
)
def test_new_name_is_read(family, config, name, value, nest_rope):
    args = read(family, config)
    assert getattr(args, name) == value


def args_of(name, **rope):
    module = module_or_skip(f"mlx_lm.models.{name}")
    return module.ModelArgs.from_dict({"model_type": name, **LONG, **rope})


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_old_and_new_config_are_equal(name, nest_rope):
    new, old = args_of(name, **NESTED), args_of(name, **FLAT)
    scaling = {name: value for name, value in new.rope_scaling.items() if name != "type"}
    assert (new.rope_theta, scaling) == (THETA, {**SCALING, "rope_theta": THETA})
    assert (old.rope_theta, old.rope_scaling) == (THETA, SCALING)


def test_rope_parameters_without_scaling(nest_rope):
    plain = {"rope_theta": THETA, "rope_type": "default"}
    assert args_of("llama", rope_parameters=plain).rope_scaling is None
    assert args_of("llama", rope_parameters={"rope_theta": THETA}).rope_theta == THETA
    given = {"rope_theta": THETA, "rope_type": "default"}
    assert args_of("ministral3", rope_parameters=given).rope_parameters == given


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
def test_old_names_are_read_as_released(rope, ungated):
    released = args_of("llama", **rope)
    ungated("nested-rope")
    assert args_of("llama", **rope) == released


@pytest.mark.parametrize(
    ("nest_rope", "config", "wanted"),
    [
        ({"rope_theta": 1.0, "type": "yarn", "factor": 2}, {}, True),
        ({"rope_theta": 1.0, "rope_type": "default", "mrope_section": [1]}, {}, True),
        ({"rope_theta": 1.0, "rope_type": "yarn"}, {"rope_scaling": {"type": "su"}}, False),
    ],
)
def test_scaling_equals_rope_parameters(nest_rope, config, wanted):
    old = find_old_names({**config, "rope_parameters": nest_rope}, KNOWN)
    assert old["rope_theta"] == 1.0
    # Some classes ask for ``type``.
    kind = nest_rope.get("rope_type", nest_rope.get("type"))
    assert old.get("rope_scaling") == ({"type": kind, **nest_rope} if wanted else None)


def test_partial_rotary_factor_is_read():
    given = {"rope_theta": 1.0, "partial_rotary_factor": 0.5}
    params = {"rope_parameters": given}
    assert find_old_names(params, KNOWN) == given
    own = {**params, "partial_rotary_factor": 0.25}
    assert find_old_names(own, KNOWN) == {"rope_theta": 1.0}
    assert find_old_names(params, {"rope_theta": KNOWN["rope_theta"]}) == {"rope_theta": 1.0}
