"""In a prompt without an image, Falcon Perception's tokens attend to later tokens.

Why
    The model builds its mask from the prompt's images: tokens of one image attend to each other,
    all other tokens only to earlier ones. Without an image it builds no mask, so each text token
    attends to the later tokens that are fed in the same piece.
How
    A call with several tokens and without a mask gets the causal mask, which is the model's own
    rule for a prompt without an image.
Upstream
    The model's twin, Falcon OCR, uses a causal mask there. Not fixed in mlx-vlm 0.7.10.
Retire when
    The release masks a prompt without an image.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target


def causal(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model's call, with a causal mask for a prompt that has none."""
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
    """Whether a call of shape (rows, tokens, ...) has several tokens a row."""
    return shape[1] > 1


PATCH = Patch(
    id="falcon-text",
    summary="Falcon Perception attends to later tokens in a prompt without an image",
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
