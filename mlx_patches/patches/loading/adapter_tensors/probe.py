"""Loads three adapters into a model of one layer: right, wrong tensor names, wrong shapes."""

import json
import tempfile
from pathlib import Path
from typing import Any

from ....probes.kit import Result, Target, module_of, mx

WIDTH, RANK = 8, 2
CONFIG: dict[str, Any] = {
    "fine_tune_type": "lora",
    "num_layers": 1,
    "lora_parameters": {"rank": RANK, "scale": 1.0, "dropout": 0.0, "keys": ["proj"]},
}


def probe(target: Target) -> Result:
    """Red if the load accepts another model's adapter, or loses the model's own."""
    load = getattr(module_of(target), target.name)
    own = {
        "layers.0.proj.lora_a": mx.ones((WIDTH, RANK)),
        "layers.0.proj.lora_b": mx.ones((RANK, WIDTH)),
    }
    others = {
        "other names": {f"model.{name}": value for name, value in own.items()},
        "other shapes": {name: value[:1] for name, value in own.items()},
    }
    model = make()
    if load_into(load, model, own) is not model or model.layers[0].proj.lora_b.max() != 1:
        return Result(True, "the model's own adapter is not loaded")
    for what, tensors in others.items():
        try:
            load_into(load, make(), tensors)
        except ValueError:
            continue
        return Result(True, f"an adapter with {what} is loaded without an error")
    return Result(False, "other models' adapters are refused")


def make() -> Any:
    import mlx.nn as nn

    model, layer = nn.Module(), nn.Module()
    layer.proj = nn.Linear(WIDTH, WIDTH, bias=False)
    model.layers = [layer]
    return model


def load_into(load: Any, model: Any, tensors: dict[str, Any], **config: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
        mx.save_safetensors(str(Path(folder, "adapters.safetensors")), tensors)
        result = load(model, folder)
        mx.eval(model.parameters())
    return result
