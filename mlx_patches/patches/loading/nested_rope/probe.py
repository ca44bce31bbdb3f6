"""Builds models from configs as transformers 5 and as transformers 4 save them."""

from typing import Any

from ....core.distributions import source_file
from ....probes.kit import LLAMA3, SIZES, Result, Target, import_module

LONG = SIZES | {"max_position_embeddings": 131072, "tie_word_embeddings": True}
SCALING = LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 8192}
THETA = 500000.0
FLAT: dict[str, Any] = {"rope_theta": THETA, "rope_scaling": SCALING}
NESTED: dict[str, Any] = {"rope_parameters": {"rope_theta": THETA, **SCALING}}
# Gemma 3's, with a separate base for sliding layers. That of the others is its classes' default,
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
    """Red if the two configs of a model give different ropes."""
    package = target.module.partition(".")[0]
    local = ["gemma3_text", *(["gemma3"] if package == "mlx_vlm" else [])]
    cases = dict.fromkeys(("llama", "qwen2", "qwen3"), (FLAT, NESTED))
    cases |= dict.fromkeys(local, (FLAT_LOCAL, NESTED_LOCAL))
    for name, configs in cases.items():
        if not source_file(f"{package}.models.{name}"):
            continue
        old, new = (rope_of(package, name, rope) for rope in configs)
        if new != old:
            return Result(True, f"{name} is built with {new}, not {old}")
    return Result(False, "both configs build the same rope")


def rope_of(package: str, name: str, rope: dict[str, Any]) -> str:
    """The rope in a text config, in mlx-lm that of a model built with it; or the error."""
    config: dict[str, Any] = {"model_type": name, **LONG, **rope}
    try:
        if package == "mlx_lm":
            module = import_module(f"mlx_lm.models.{name}")
            args = module.ModelArgs.from_dict(config)
            how = type(module.Model(args).layers[0].self_attn.rope).__name__
        else:
            module = import_module(f"mlx_vlm.models.{name}.config")
            args = (getattr(module, "TextConfig", None) or module.ModelConfig).from_dict(config)
            how = f"scaled by {dict(getattr(args, 'rope_scaling', None) or {}).get('factor')}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # Of the full layers, if they have a separate one.
    base = getattr(args, "rope_global_base_freq", None) or args.rope_theta
    return f"base {base:g}, locally {getattr(args, 'rope_local_base_freq', None)}, {how}"
