"""Passes a converted and a published checkpoint to the release's own ``sanitize``."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, mx, require


def probe(target: Target) -> Result:
    """Red if either's norm weights are not shifted exactly once, conversion included."""
    sanitize, wrong = require(target), []
    for label, weights, wanted in checkpoints(target):
        shifted = sanitize(stand_in(), weights)
        (norm,) = [value for name, value in shifted.items() if name.endswith("norm.weight")]
        got = float(norm.reshape(-1)[0].item())
        if got != wanted:
            wrong.append(f"{label}: {got:g}, not {wanted:g}")
    return Result(bool(wrong), "; ".join(wrong) or "every checkpoint's norms are shifted once")


def stand_in() -> Any:
    """A stand-in with the model attributes that ``sanitize`` reads."""
    text = SimpleNamespace(tie_word_embeddings=False, num_hidden_layers=0, num_experts=0)
    vision = SimpleNamespace(in_channels=3)
    config = SimpleNamespace(
        text_config=text, vision_config=vision, tie_word_embeddings=False, num_hidden_layers=0
    )
    return SimpleNamespace(args=text, config=config, language_model=SimpleNamespace(args=text))


def checkpoints(target: Target) -> list[tuple[str, dict[str, Any], float]]:
    """Triples of a label, a checkpoint's weights, and the norm weight that the model needs."""
    if target.name.startswith("Qwen3_5MTP"):
        return [
            ("a converted MTP head", {"norm.weight": mx.full((4,), 1.25)}, 1.25),
            ("a published MTP head", {"mtp.norm.weight": mx.full((4,), 0.25)}, 1.25),
        ]
    # mlx-lm renames the weights before this call; mlx-vlm passes them with their published names.
    lm = target.distribution == "mlx-lm"
    published = "language_model.model." if lm else "model.language_model."
    out = []
    for label, prefix, norm, convolution in (
        ("a converted checkpoint", "language_model.model.", 1.25, (8, 4, 1)),
        ("a published checkpoint", published, 0.25, (8, 1, 4)),
    ):
        for more in ("", " with MTP"):
            weights = {  # new arrays each time: releases shift them in place
                f"{prefix}layers.0.input_layernorm.weight": mx.full((4,), norm),
                f"{prefix}layers.0.linear_attn.conv1d.weight": mx.zeros(convolution),
            }
            if more:
                weights["mtp.norm.weight"] = mx.zeros((4,))
            out.append((label + more, weights, 1.25))
    return out
