"""Falcon Perception reads ahead in a prompt without an image.

Why
    The model makes its mask from a prompt's images: tokens of one image see each other, all
    others only what is before them. Without an image no mask is made at all, and each token of
    the text sees those that follow it, as far as they are fed in one piece.
How
    Several tokens that come without a mask get the causal one, which is the model's own for a
    prompt without an image in it.
Upstream
    The model's twin, Falcon OCR, does the same in mlx-vlm 0.7.10. Live there.
Retire when
    A text gets a mask.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target


def causal(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model's call, with a mask for every prompt."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        embeds = given.get("inputs_embeds")
        tokens = given["inputs"] if embeds is None else embeds
        if given.get("mask") is None and needs_mask(tokens.shape):
            given["mask"] = "causal"
        return call(*bound.args, **bound.kwargs)

    return replacement


def needs_mask(shape: tuple[int, ...]) -> bool:
    """Whether there are several tokens (rows, tokens, ...) in a call."""
    return shape[1] > 1


PATCH = Patch(
    id="falcon-text",
    summary="Falcon Perception reads ahead in a prompt without an image",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.falcon_perception.language",
            "FalconPerceptionTransformerModel.__call__",
            causal,
            ("FalconPerceptionTransformerModel.__call__", "LanguageModel.__call__"),
        ),
    ),
    probe="mlx_patches.probes.reads_ahead:probe",
    module=__name__,
)
