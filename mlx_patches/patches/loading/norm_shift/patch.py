"""Qwen3.5 and 3.6 output garbage if converted before: 1 is added to the norm weights twice.

Why: A published checkpoint stores its norm weights minus 1, and loading adds 1. A converted
    checkpoint has it added already. mlx-lm treats a checkpoint with an MTP head as not converted;
    mlx-vlm and its MTP drafter add 1 to every checkpoint.
How: The layout of the convolutions shows whether a checkpoint is converted: conversion transposes
    them and adds 1 in the same pass. For a converted checkpoint, mlx-lm does not get the MTP
    weights, which it drops anyway, and mlx-vlm gets the norms in a shape that it does not shift.
Upstream: mlx-lm 0.32.0 checks only the convolutions (mlx-lm 1197 1320 1442 1623 1735), mlx-vlm
    0.6.5 the convolutions and the tensors' names (mlx-vlm 1548 1552 1554 1556).
Retire when: No supported release shifts a converted checkpoint.
"""

from collections.abc import Iterable
from typing import Any

from ....core.verbs import Function, Patch, tensors, wrap

Weights = dict[str, Any]

_SUFFIXES = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
_DRAFT_SUFFIXES = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")


def drop_draft_head(weights: Weights) -> Weights:
    """mlx-lm: a converted checkpoint without its MTP weights."""
    if any("mtp." in name for name in weights) and is_converted(weights):
        return {name: value for name, value in weights.items() if "mtp." not in name}
    return weights


def sanitize_vision(sanitize: Function, model: Any, weights: Weights) -> Any:
    """mlx-vlm: sanitize a converted checkpoint without the shift.

    Its tensors have the model's names; in a published checkpoint they have other names.
    """
    if not is_converted(weights):
        return sanitize(model, weights)
    shifted = [
        name
        for name in weights
        if name.startswith("language_model.") and name.endswith(_SUFFIXES) and "mtp." not in name
    ]
    return sanitize_without_shift(sanitize, model, weights, shifted)


def sanitize_draft(sanitize: Function, model: Any, weights: Weights) -> Any:
    """mlx-vlm's drafter: a published MTP head has a prefix, which conversion removes."""
    shifted = [
        name for name in weights if not is_published(name) and name.endswith(_DRAFT_SUFFIXES)
    ]
    return sanitize_without_shift(sanitize, model, weights, shifted)


def is_converted(weights: Weights) -> bool:
    """Whether a checkpoint's convolutions have their channels last."""
    turned = [value.shape[-1] == 1 for name, value in weights.items() if "conv1d.weight" in name]
    return bool(turned) and all(turned)


def is_published(name: str) -> bool:
    """Whether an MTP weight has the name that it has in a published checkpoint."""
    return name.startswith("mtp.")


def sanitize_without_shift(
    sanitize: Function, model: Any, weights: Weights, shifted: Iterable[str]
) -> Any:
    """The sanitized weights; those named in ``shifted`` are left unchanged.

    Releases shift weights with one axis, so each of these gets a second axis for the call.
    """
    stand_ins = {name: weights[name][None] for name in shifted if weights[name].ndim == 1}
    if not stand_ins:
        return sanitize(model, weights)
    originals = {id(value): weights[name] for name, value in stand_ins.items()}
    result = sanitize(model, {**weights, **stand_ins})
    return {name: originals.get(id(value), value) for name, value in result.items()}


PATCH = Patch(
    id="norm-shift",
    every_model=True,
    targets=(
        *tensors("mlx_lm.models.qwen3_5:TextModel.sanitize", drop_draft_head),
        *wrap(
            "mlx_vlm.models.qwen3_5.qwen3_5:Model.sanitize",
            sanitize_vision,
            fingerprint_of=("Model.sanitize", "should_shift_norm_weights"),
        ),
        *wrap("mlx_vlm.models.qwen3_5_moe.qwen3_5_moe:Model.sanitize", sanitize_vision),
        *wrap(
            "mlx_vlm.speculative.drafters.qwen3_5_mtp.qwen3_5_mtp:Qwen3_5MTPDraftModel.sanitize",
            sanitize_draft,
        ),
    ),
)
