"""In a prompt without an image, tokens of the Falcon models attend to later tokens.

Why
    Falcon Perception, and Falcon OCR before mlx-vlm 0.5.0, build their mask from the prompt's
    images: tokens of one image attend to each other, all other tokens only to earlier ones.
    Without an image they build no mask, so each text token attends to the later tokens that are
    fed in the same piece: a prompt fed in pieces has other logits than the whole prompt.
How
    A call with several tokens and without a mask gets the causal mask, which is the model's own
    rule for a prompt without an image.
Upstream
    mlx-vlm 0.5.0 gives Falcon OCR the causal mask. Falcon Perception is not fixed in 0.7.10.
Retire when
    No supported release has a Falcon model that does not mask a prompt without an image.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target


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


_MODELS = {
    "falcon_perception": "FalconPerceptionTransformerModel.__call__",
    "falcon_ocr": "FalconOCRTransformerModel.__call__",
}

PATCH = Patch(
    id="falcon-text",
    summary="Falcon OCR and Falcon Perception attend to later tokens in prompts without an image",
    targets=tuple(
        Target(
            "mlx-vlm",
            f"mlx_vlm.models.{family}.language",
            name,
            causal,
            (name, "LanguageModel.__call__"),
        )
        for family, name in _MODELS.items()
    ),
    probe="mlx_patches.probes.reads_ahead:probe",
)
