"""Qwen3-Omni in mlx-vlm: a sound gets 160 times too many tokens; from 0.7 two sounds lose a token.

Why: The processor counts a sound's tokens from a mask of samples, of which 160 are a frame. Later
    releases divide by a rounded ratio, and the shorter of two sounds loses frames. Single requests
    are wrong too.
How: The processor asks the feature extractor for the mask of frames.
Upstream: mlx-vlm issue 1620, repaired only for single sounds.
Retire when: The processor passes ``return_attention_mask`` to the feature extractor.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap

OPTION = "return_attention_mask"


def count_frames(call: Function, processor: Any, *args: Any, **more: Any) -> Any:
    """The inputs of a prompt, with the mask of its sounds' frames."""
    if more.get("audio") is not None:
        more.setdefault(OPTION, True)
    return call(processor, *args, **more)


PATCH = Patch(
    id="qwen3-omni-sounds",
    every_model=True,
    changes_solo=True,
    targets=wrap(
        "mlx_vlm.models.qwen3_omni_moe.processing_qwen3_omni_moe:Qwen3OmniMoeProcessor.__call__",
        count_frames,
    ),
)
