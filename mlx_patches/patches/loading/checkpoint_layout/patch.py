"""Two published checkpoints are read wrongly: Falcon H1's factors, gpt-oss without quantization."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import models

Weights = dict[str, Any]
_STACKED = re.compile(r"\.experts\.(gate_up_proj|down_proj)$")
_SPLIT = re.compile(r"\.experts\.(gate_proj|up_proj|down_proj)$")


def with_factors(sanitize: Callable[..., Weights], model: Any, weights: Weights) -> Weights:
    """The release's sanitized checkpoint, with the factors of keys and values in their weights."""
    read = sanitize(model, weights)
    if read is weights:  # converted before
        return read
    factors = factors_of(model.args)
    for name in read:
        part = name.removesuffix(".weight").rpartition(".")[2]
        if part in factors:
            read[name] = read[name] * factors[part]
    return read


def factors_of(args: Any) -> dict[str, float]:
    """By projection: the factor that the release does not apply to its weight."""
    found = {"k_proj": args.key_multiplier, "v_proj": args.attention_in_multiplier}
    return {name: factor for name, factor in found.items() if factor != 1}


def with_experts(sanitize: Callable[..., Weights], model: Any, weights: Weights) -> Weights:
    """The release's sanitized checkpoint, also where its experts are not quantized."""
    if not any(_STACKED.search(name) for name in weights):
        return sanitize(model, weights)
    turned = {
        # The release splits rows, as in a quantized checkpoint; these have gate and up in columns.
        name: value.swapaxes(-1, -2) if _STACKED.search(name) else value
        for name, value in weights.items()
    }
    read = sanitize(model, turned)
    return {
        f"{name}.weight" if _SPLIT.search(name) else name: value for name, value in read.items()
    }


def _targets(family: str, wrapper: Callable[..., Any]) -> tuple[Target, ...]:
    return tuple(
        Target(*place, f"{owner}.sanitize", around(wrapper))
        for place, owner in zip(models(family), ("Model", "LanguageModel"), strict=True)
    )


FALCON_H1_FACTORS = Patch(
    id="falcon-h1-factors",
    every_model=True,
    wrong_alone="falcon_h1",
    changes_alone=True,
    summary="Falcon H1 ignores its key and value factors: wrong output, even for a single request",
    targets=_targets("falcon_h1", with_factors),
    probe=".probe:falcon_h1",
    doc="""Falcon H1 attends wrongly: factors of its keys and values are ignored.

    Why
        Releases fold the config's factors into the weights. They look for ``key_proj``, which no
        checkpoint has, so ``key_multiplier`` never counts, and they forget that
        ``attention_in_multiplier`` counts for values too.
    How
        The two factors are folded into the weights of ``k_proj`` and ``v_proj`` of a published
        checkpoint. One that a release converted is wrong in itself: load the published one.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        Every supported release folds the two factors in.
    """,
)

GPT_OSS_EXPERTS = Patch(
    id="gpt-oss-experts",
    severity="crash",
    every_model=True,
    summary="gpt-oss checkpoints without quantization, such as fine-tunes, do not load",
    targets=_targets("gpt_oss", with_experts),
    probe=".probe:gpt_oss",
    doc="""A gpt-oss checkpoint without quantization, as fine-tunes are, does not load.

    Why
        Transformers saves the experts' weights with gate and up in alternating columns, and
        quantized ones in alternating rows. Releases know the latter alone, and give the others
        names that the model lacks: "parameters not in model".
    How
        Weights that are not quantized are transposed before the release splits them, and get the
        model's names after it.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        Every supported release loads such a checkpoint.
    """,
)
