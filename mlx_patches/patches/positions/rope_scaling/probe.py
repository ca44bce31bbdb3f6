"""Builds an attention layer with a scaling by two, and compares it with an unscaled one."""

import dataclasses
import inspect
from typing import Any

from ....probes.kit import (
    LLAMA3,
    NotApplicable,
    Result,
    Target,
    family_of,
    import_module,
    module_of,
    mx,
    require_names,
    require_own,
    tiny_of,
)

FACTOR, PLACE = 2, 3
# Every wavelength exceeds the original context, so all positions are divided by the factor.
SCALING = LLAMA3 | {
    "type": "llama3",
    "factor": float(FACTOR),
    "original_max_position_embeddings": 1,
}
TOLERANCE = 1e-5
# The family for the targets that keep the scaling in the config.
_SHOWN = {"mlx-lm": "mlx_lm.models.cohere", "mlx-vlm": "mlx_vlm.models.idefics3.language"}


def probe(target: Target) -> Result:
    """Red if a position differs from half of it without the scaling."""
    if target.supports:
        target = target._replace(module=_SHOWN[target.distribution], name="Attention.__init__")
    require_own(target)
    x = mx.random.normal((1, 1, 1, 64), key=mx.random.key(0))
    plain = make(target, {})
    if not hasattr(plain, "rope"):  # the first releases of Qwen-VL have no sections
        require_names(plain.rotary_emb, "mrope_section")
    expected = rotate(plain, x, PLACE)
    actual = rotate(make(target, SCALING), x, FACTOR * PLACE)
    worst = max(mx.abs(a - b).max().item() for a, b in zip(actual, expected, strict=True))
    return Result(not worst <= TOLERANCE, f"positions are off by {worst:.2g}", worst)


def rotate(layer: Any, x: Any, place: int) -> list[Any]:
    """Apply a layer's RoPE at a position, or return its angles there."""
    if hasattr(layer, "rope"):
        return [layer.rope(x, offset=place)]
    return list(layer.rotary_emb(x, mx.full((3, 1, 1), place)))


def make(target: Target, scaling: dict[str, Any]) -> Any:
    """Make a target's attention layer, from a small config with this scaling."""
    family = family_of(target)
    module = module_of(target)
    config = tiny_of(target).config
    if target.distribution == "mlx-lm":
        kind = module.ModelArgs
    else:
        # Pixtral accepts only linear scaling; Mistral 3 has the same layers.
        name = "mistral3" if family == "pixtral" else family
        configs = import_module(f"mlx_vlm.models.{name}.config")
        kind = getattr(configs, "TextConfig", None) or configs.ModelConfig
    sections = (config.get("rope_scaling") or {}).get("mrope_section")
    shared = {"type": "default", "mrope_section": sections} if sections else {}
    named = {"rope_scaling": {**shared, **scaling} or None}
    if "rope_parameters" in {field.name for field in dataclasses.fields(kind)}:
        own = (config.get("rope_parameters") or {}).items()
        flat = {name: value for name, value in own if not isinstance(value, dict)}
        named = {**named, "rope_parameters": {**flat, **scaling}}
    try:
        args = kind.from_dict({"model_type": family, **config, "rope_scaling": None, **named})
    except ValueError as error:  # the release has no such layers in Mistral 3
        if sections:
            raise
        raise NotApplicable(str(error)) from None
    layer = getattr(module, target.name.partition(".")[0])
    # The last layer of each pattern, which is not a sliding one.
    more = [name for name in inspect.signature(layer.__init__).parameters if "idx" in name]
    return layer(args, *[config.get("sliding_window_pattern", 2) - 1 for _ in more])
