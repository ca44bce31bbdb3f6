"""Builds models from configs as transformers 5 and as transformers 4 save them."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.distributions import source_file
from ....core.patch import Target
from ....probes import Result

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
THETA = 500000.0
FLAT: dict[str, Any] = {"rope_theta": THETA, "rope_scaling": SCALING}
NESTED: dict[str, Any] = {"rope_parameters": {"rope_theta": THETA, **SCALING}}
MODELS = ("llama", "qwen2", "qwen3")


def probe(target: Target) -> Result:
    """Red where the two configs of a model build different ropes."""
    for name in MODELS:
        if not source_file(f"mlx_lm.models.{name}"):
            continue
        old, new = rope_of(name, FLAT), rope_of(name, NESTED)
        if new != old:
            return Result(True, f"{name} is built with {new}, not {old}")
    return Result(False, "both configs build the same rope")


def rope_of(name: str, rope: dict[str, Any]) -> str:
    """The class and base of the rope that a model is built with, or the error."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    try:
        args = module.ModelArgs.from_dict({"model_type": name, **SIZES, **rope})
        layer = module.Model(args).layers[0]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"a {type(layer.self_attn.rope).__name__} of base {args.rope_theta:g}"
