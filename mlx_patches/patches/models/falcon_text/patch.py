"""Falcon OCR and Falcon Perception attend to later tokens in prompts without an image.

Why: Falcon Perception, and Falcon OCR before mlx-vlm 0.5.0, build their mask from the prompt's
    images: tokens of one image attend to each other, all other tokens only to earlier ones. Without
    an image they build no mask, so each text token attends to later tokens of the same chunk, and
    chunked prefill changes the logits.
How: A call with several tokens and no mask gets the causal mask, which is the model's own rule for
    text.
Upstream: mlx-vlm 0.5.0 gives Falcon OCR the causal mask. Falcon Perception is not fixed in 0.7.10.
Retire when: No supported release has a Falcon model without a mask for text.
"""

from typing import Any

from ....core.verbs import Patch, argument, vlm_family


def default_to_causal(inputs: Any, inputs_embeds: Any, mask: Any) -> Any:
    tokens = inputs if inputs_embeds is None else inputs_embeds
    return "causal" if mask is None and needs_mask(tokens.shape) else mask


def needs_mask(shape: tuple[int, ...]) -> bool:
    return shape[1] > 1


_CALLS = {
    "falcon_perception": "FalconPerceptionTransformerModel.__call__",
    "falcon_ocr": "FalconOCRTransformerModel.__call__",
}

PATCH = Patch(
    id="falcon-text",
    targets=tuple(
        target
        for family, call in _CALLS.items()
        for target in argument(
            vlm_family(family, call),
            "mask",
            default_to_causal,
            fingerprint_of=(call, "LanguageModel.__call__"),
        )
    ),
    probe="mlx_patches.probes.reads_ahead:probe",
)
