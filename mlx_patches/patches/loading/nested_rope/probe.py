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
# Gemma 3's, with a base of its own for sliding layers. That of the others is its classes' default,
# which some of them take whatever ``rope_theta`` is.
LOCAL, GLOBAL = 20000.0, 1000000.0
FLAT_LOCAL = {**FLAT, "rope_theta": GLOBAL, "rope_local_base_freq": LOCAL}
NESTED_LOCAL: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_theta": GLOBAL, **SCALING},
        "sliding_attention": {"rope_theta": LOCAL, "rope_type": "default"},
    }
}


def probe(target: Target) -> Result:
    """Red where the two configs of a model give different ropes."""
    package = target.module.partition(".")[0]
    read = vision_rope if package == "mlx_vlm" else rope_of
    cases = [(name, FLAT, NESTED) for name in MODELS]
    for name, flat, nested in [*cases, ("gemma3_text", FLAT_LOCAL, NESTED_LOCAL)]:
        if not source_file(f"{package}.models.{name}"):
            continue
        old, new = read(name, flat), read(name, nested)
        if new != old:
            return Result(True, f"{name} is built with {new}, not {old}")
    if read is vision_rope:
        old, new = read("gemma3", FLAT_LOCAL), read("gemma3", NESTED_LOCAL)
        return Result(new != old, f"gemma3 has {new}, and in the old keys {old}")
    return Result(False, "both configs build the same rope")


def vision_rope(name: str, rope: dict[str, Any]) -> str:
    """The rope of a text config of mlx-vlm, or the error."""
    config = importlib.import_module(f"mlx_vlm.models.{name}.config")
    kind = getattr(config, "TextConfig", None) or config.ModelConfig
    try:
        args = kind.from_dict({"model_type": name, **SIZES, **rope})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    scaling = dict(getattr(args, "rope_scaling", None) or {})
    local = getattr(args, "rope_local_base_freq", None)
    return f"base {base_of(args):g}, scaled by {scaling.get('factor')}, locally {local}"


def base_of(args: Any) -> float:
    """The base of a config's ropes, of the full layers if they have one of their own."""
    name = "rope_global_base_freq" if hasattr(args, "rope_global_base_freq") else "rope_theta"
    return float(getattr(args, name))


def rope_of(name: str, rope: dict[str, Any]) -> str:
    """The class and base of the rope that a model is built with, or the error."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    try:
        args = module.ModelArgs.from_dict({"model_type": name, **SIZES, **rope})
        layer = module.Model(args).layers[0]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    local = getattr(args, "rope_local_base_freq", None)
    rope_class = type(layer.self_attn.rope).__name__
    return f"a {rope_class} of base {base_of(args):g}, locally {local}"
