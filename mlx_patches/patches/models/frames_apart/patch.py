"""GLM-4.1V, ERNIE 4.5 VL in mlx-vlm mix up images from the third on; Qwen2-VL (0.4) crashes on two.

Why: The vision tower runs all images and frames as one sequence, and should attend within each. Its
    attention splits the sequence only after the first and after the second of them, so that patches
    of the others attend to each other. Qwen2-VL's keeps only the result of the last, and raises.
How: Attention runs once per image or frame if there are more than three; for Qwen2-VL, than one.
Upstream: Not fixed in mlx-vlm 0.7.10; Qwen2-VL in mlx-vlm 0.5.0.
Retire when: The towers split the sequence at each boundary.
"""

import itertools
from typing import Any

from ....core.verbs import Function, Patch, mx, wrap

# How many parts of a sequence the release's attention keeps apart.
PARTS = {
    "glm4v.vision:Glm4vVisionAttention": 3,
    "ernie4_5_moe_vl.vision:VisionAttention": 3,
    "qwen2_vl.vision:Attention": 1,
}


def attend_beyond(parts: int) -> Function:
    """A wrapper that attends within each part of a sequence if it has more than these."""

    def attend_apart(
        attend: Function, attention: Any, x: Any, cu_seqlens: Any, rotary_pos_emb: Any = None
    ) -> Any:
        if not is_mixed(cu_seqlens, parts):
            return attend(attention, x, cu_seqlens, rotary_pos_emb)
        spans = [slice(*ends) for ends in itertools.pairwise(cu_seqlens.tolist())]
        return mx.concatenate(
            [attend(attention, x[one], measure(one), rotary_pos_emb[one]) for one in spans]
        )

    return attend_apart


def is_mixed(ends: Any, parts: int) -> bool:
    return bool(ends.shape[0] - 1 > parts)


def measure(span: slice) -> Any:
    """The boundaries of a single part."""
    return mx.array([0, span.stop - span.start])


PATCH = Patch(
    id="frames-apart",
    every_model=True,
    changes_solo=True,
    targets=tuple(
        target
        for name, parts in PARTS.items()
        for target in wrap(f"mlx_vlm.models.{name}.__call__", attend_beyond(parts))
    ),
)
