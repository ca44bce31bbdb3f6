"""Compares a tiny MiMo layer with a value scale and one whose weights are scaled by hand."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import config_class, off_by
from ..._shared.targets import models

SCALE, WIDTH = 0.5, 16
_FAMILY = "mimo_v2_flash"
_OPTIONS: dict[str, Any] = {
    "model_type": _FAMILY,
    "num_experts_per_tok": 1,
    "hybrid_layer_pattern": [0, 1],
    "moe_layer_freq": [0, 0],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "sliding_window_size": 4,
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "moe_intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "n_shared_experts": None,
    "n_routed_experts": None,
    "routed_scaling_factor": None,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 128,
    "layernorm_epsilon": 1e-5,
    "rope_theta": 10000.0,
    "swa_rope_theta": 10000.0,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 1,
    "head_dim": 8,
    "v_head_dim": 8,
    "swa_head_dim": 8,
    "swa_v_head_dim": 8,
    "partial_rotary_factor": 0.5,
}


def probe(target: Target) -> Result:
    """Red where their outputs differ."""
    import mlx.core as mx

    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    by_hand = make(target.distribution)
    by_hand.v_proj.weight = by_hand.v_proj.weight * SCALE
    wanted = by_hand(x)
    said = make(target.distribution, attention_value_scale=SCALE)(x)
    return off_by(said, wanted, 1e-5)


def make(distribution: str, **more: Any) -> Any:
    """Make a layer with these options; every layer gets the same weights."""
    import mlx.core as mx

    layers = importlib.import_module(dict(models(_FAMILY))[distribution])
    args = config_class(distribution, _FAMILY).from_dict({**_OPTIONS, **more})
    mx.random.seed(0)
    return layers.Attention(args, True)
