"""Builds vllm-mlx's text model from the weights of a model of another family."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_of, require, tiny

_WIDTHS = ("hidden_size", "intermediate_size", "vocab_size", "head_dim")
_CONFIG = dict.fromkeys(_WIDTHS, 32) | {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
}


def probe(target: Target) -> Result:
    """Red if text of Qwen2.5-VL goes to layers of Qwen3.5, or that of Qwen3.5 does not."""
    require(target)
    build = module_of(target).build_text_model
    model = SimpleNamespace(language_model=tiny("mlx-vlm", "qwen2_5_vl").module)
    got = {one: build_from(build, model, one) for one in ("qwen2_5_vl_text", "qwen3_5_text")}
    return Result(list(got.values()) != [False, True], f"text models built: {got}")


def build_from(build: Any, model: Any, model_type: str) -> bool:
    """Whether a text model is built for a folder with this type."""
    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps({"text_config": _CONFIG | {"model_type": model_type}})
        Path(folder, "config.json").write_text(config)
        return build(model, folder) is not None
