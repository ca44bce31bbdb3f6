"""Checkpoints load wrongly: Falcon H1's factors, experts of gpt-oss and Qwen3-VL MoE."""

import re
from collections.abc import Callable
from typing import Any

from ....core.verbs import Patch, lm_family, result, tensors, vlm_family, wrap

Weights = dict[str, Any]
_STACKED = re.compile(r"\.experts\.(gate_up_proj|down_proj)$")
_SPLIT = re.compile(r"\.experts\.(gate_proj|up_proj|down_proj)$")


def apply_factors(sanitized: Weights, model: Any, weights: Weights, /) -> Weights:
    """The sanitized checkpoint, with the factors of keys and values in their weights."""
    if sanitized is not weights:  # else it was converted before
        factors = find_factors(model.args)
        for name in sanitized:
            part = name.removesuffix(".weight").rpartition(".")[2]
            if part in factors:
                sanitized[name] = sanitized[name] * factors[part]
    return sanitized


def find_factors(args: Any) -> dict[str, float]:
    """By projection: the factor that the release does not apply to its weight."""
    found = {"k_proj": args.key_multiplier, "v_proj": args.attention_in_multiplier}
    return {name: factor for name, factor in found.items() if factor != 1}


def sanitize_experts(sanitize: Callable[..., Weights], model: Any, weights: Weights) -> Weights:
    """The sanitized checkpoint, whether or not its experts are quantized."""
    if not any(_STACKED.search(name) for name in weights):
        return sanitize(model, weights)
    transposed = {
        # The release splits rows, as in a quantized checkpoint; these have gate and up in columns.
        name: value.swapaxes(-1, -2) if _STACKED.search(name) else value
        for name, value in weights.items()
    }
    return {
        f"{name}.weight" if _SPLIT.search(name) else name: value
        for name, value in sanitize(model, transposed).items()
    }


def turn_experts(model: Any, /, weights: Weights) -> Weights:
    """A checkpoint of Qwen3-VL MoE whose experts have inputs in rows, as published ones have."""
    down = next((value for name, value in weights.items() if is_down(name)), None)
    width = model.config.text_config.hidden_size
    if down is None or down.shape[-2] != width or down.shape[-1] == width:
        return weights
    return {
        name: value.swapaxes(-1, -2) if _STACKED.search(name) else value
        for name, value in weights.items()
    }


def is_down(name: str) -> bool:
    """Whether a weight is the experts' last projection."""
    return name.endswith(".experts.down_proj")


def _sanitize(family: str) -> tuple[str, ...]:
    return (*lm_family(family, "Model.sanitize"), *vlm_family(family, "LanguageModel.sanitize"))


FALCON_H1_FACTORS = Patch(
    id="falcon-h1-factors",
    every_model=True,
    wrong_solo="falcon_h1",
    targets=result(_sanitize("falcon_h1"), apply_factors),
    probe=".probe:probe_falcon_h1",
    doc="""Falcon H1 ignores its key and value factors: wrong output, even for a single request.

    Why: Releases fold the config's factors into the weights. They look for ``key_proj``, which no
        checkpoint has, so ``key_multiplier`` is ignored, and they do not apply
        ``attention_in_multiplier`` to the values.
    How: The two factors are folded into the weights of ``k_proj`` and ``v_proj`` of a published
        checkpoint. A checkpoint that a release converted stays wrong: load the published one.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: Every supported release folds the two factors in.
    """,
)

GPT_OSS_EXPERTS = Patch(
    id="gpt-oss-experts",
    severity="crash",
    every_model=True,
    targets=wrap(_sanitize("gpt_oss"), sanitize_experts),
    probe=".probe:probe_gpt_oss",
    doc="""gpt-oss checkpoints without quantization, such as fine-tunes, do not load.

    Why: Transformers saves the experts' weights with gate and up in alternating columns, and
        quantized ones in alternating rows. Releases handle only the latter, and give the others
        names that the model lacks: "parameters not in model".
    How: Weights that are not quantized are transposed before the release splits them, and get the
        model's names after it.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: Every supported release loads such a checkpoint.
    """,
)

QWEN3_VL_EXPERTS = Patch(
    id="qwen3-vl-experts",
    severity="crash",
    every_model=True,
    changes_solo=True,
    targets=tensors("mlx_vlm.models.qwen3_vl_moe.qwen3_vl_moe:Model.sanitize", turn_experts),
    probe=".probe:probe_qwen3_vl",
    doc="""Qwen3-VL MoE saved by transformers 5 does not load in mlx-vlm.

    Why: Published experts have inputs in rows and outputs in columns. Transformers 5 saves them the
        other way round, and mlx-vlm transposes both.
    How: Experts that transformers 5 saved are transposed first.
    Upstream: Not fixed in mlx-vlm 0.7.10.
    Retire when: mlx-vlm reads both layouts.
    """,
)
