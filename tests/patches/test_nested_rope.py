"""Configs as transformers 5 saves them, and a broken version of ``nested-rope``."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import Patch
from mlx_patches.patches import catalogue
from mlx_patches.patches.loading.nested_rope import patch as nested_rope

NESTED = {"rope_theta": 20000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
INFINITE = [0.0, {"__float__": "Infinity"}]


@pytest.fixture(autouse=True)
def applied(ungated: Callable[[Patch], Manager]) -> Manager:
    for base in ("mlx_lm.models.base", "mlx_vlm.models.base"):
        if source_file(base):
            importlib.import_module(base)
    return ungated(catalogue.builtin().get("nested-rope"))


def read(family: str, config: dict[str, Any]) -> Any:
    """A family's config object; fields without a default that the config lacks are one."""
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
        ("exaone4", {"rope_parameters": NESTED}, "rope_scaling", None),
        ("glm4_moe", {"rope_parameters": NESTED}, "rope_scaling", None),
        ("gpt_neox", {"rope_parameters": NESTED}, "rotary_pct", 0.25),
        ("gpt_neox", {"rope_parameters": NESTED}, "rotary_emb_base", 20000.0),
        ("mistral3", {"rope_parameters": NESTED, "use_qk_norm": False}, "rope_theta", 20000.0),
        ("mamba2", {"time_step_limit": INFINITE}, "time_step_limit", [0.0, math.inf]),
    ],
)
def test_a_new_name_is_read(family, config, name, value):
    args = read(family, config)
    assert getattr(args, name) == value


def names_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_rope, "old_names", lambda params, known: {})


MUTANTS = {"nested-rope": names_that_are_not_read}
