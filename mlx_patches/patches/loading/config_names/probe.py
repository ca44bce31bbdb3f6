"""Reads configs with the old and with the new names of their options."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.patch import Target
from ....lab.shrink import small_config
from ....probes import Result
from ....probes.fixtures import NEMOTRON_H

LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 32,
    "block_ff_dim": 48,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "rope_theta": 10000.0,
    "full_attn_idxs": [1],
    "layer_types": ["conv", "full_attention"],
}
# By module: a config with the old names, and the changes that make it one with the new names.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lfm2": (LFM2, {"block_ff_dim": None, "intermediate_size": 48}),
    "nemotron_h": (
        {
            **NEMOTRON_H,
            "hybrid_override_pattern": ["M", "*", "M", "-"],
            "num_hidden_layers": 4,
            "time_step_limit": [0.0, 100.0],
        },
        {
            "hybrid_override_pattern": None,
            "num_hidden_layers": None,
            "layers_block_type": ["linear_attention", "full_attention", "mamba", "mlp"],
        },
    ),
}


def probe(target: Target) -> Result:
    """Red where a config with the new names is not loaded, or builds other layers."""
    module = importlib.import_module(target.module)
    if "granitemoehybrid" in target.module:
        return granite(getattr(module, target.name.partition(".")[0]))
    old, new = CASES[target.module.rpartition(".")[2]]
    wanted = layers_of(module, old)
    renamed = {name: value for name, value in {**old, **new}.items() if value is not None}
    try:
        given = layers_of(module, renamed)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return Result(True, f"the config is not loaded: {type(error).__name__}: {error}")
    detail = "both build the same layers" if given == wanted else f"{given}, not {wanted}"
    return Result(given != wanted, detail)


def granite(kind: Any) -> Result:
    """Red where a config object has names of layers that the model does not know."""
    new = ["linear_attention", "full_attention"] * 2
    args = kind.from_dict({**small_config(kind), "layer_types": new})
    return Result(set(args.layer_types) != {"mamba", "attention"}, f"{args.layer_types}")


def layers_of(module: Any, config: dict[str, Any]) -> list[str]:
    """The names and shapes of a model's weights."""
    from mlx.utils import tree_flatten

    parameters = module.Model(module.ModelArgs.from_dict(config)).parameters()
    return [f"{name} {value.shape}" for name, value in tree_flatten(parameters)]
