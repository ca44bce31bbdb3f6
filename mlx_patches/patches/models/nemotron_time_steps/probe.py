"""Compares a tiny Nemotron-H mixer without time_step_limit and one with the limits 0 and inf."""

import dataclasses
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, compare_arrays, module_of, mx

_WIDTH = 32
_RANGE = {"time_step_min": 0.001, "time_step_max": 0.1}
_CONFIG = {
    "model_type": "nemotron_h",
    "vocab_size": 64,
    "hidden_size": _WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "max_position_embeddings": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "attention_bias": False,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "mamba_proj_bias": False,
    "ssm_state_size": 32,
    "conv_kernel": 4,
    "n_groups": 1,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "rms_norm_eps": 1e-5,
    "residual_in_fp32": False,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
    "hybrid_override_pattern": ["M"],
    "head_dim": 16,
}


def probe(target: Target) -> Result:
    """Red if their outputs differ."""
    module = module_of(target)
    if "time_step_min" not in {field.name for field in dataclasses.fields(module.ModelArgs)}:
        raise NotApplicable("this release reads no time_step_min")
    x = mx.random.normal((1, 8, _WIDTH), key=mx.random.key(1))
    actual = run_mixer(module, x, **_RANGE)
    expected = run_mixer(module, x, time_step_limit=(0.0, mx.inf))
    return compare_arrays(actual, expected, 0)


def run_mixer(module: Any, x: Any, **limits: Any) -> Any:
    """Run a mixer with these limits on ``x`` (rows, length, width)."""
    mx.random.seed(0)
    args = module.ModelArgs.from_dict({**_CONFIG, **limits})
    mixer = module.NemotronHMamba2Mixer(args)
    mixer.dt_bias = 2 * mx.random.normal(mixer.dt_bias.shape)
    return mixer(x, None)
