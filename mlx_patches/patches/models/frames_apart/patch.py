"""GLM-4.1V and ERNIE 4.5 VL in mlx-vlm mix a prompt's third and later images or frames.

Why: The vision tower runs all images and frames as one sequence, and should attend within each. Its
    attention splits the sequence only after the first and after the second of them, so that patches
    of the others attend to each other.
How: Attention runs once per image or frame if there are more than three.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The towers split the sequence at each boundary.
"""

import itertools
from typing import Any

from ....core.verbs import Function, Patch, mx, wrap

# How many parts the release splits a sequence into.
_PARTS = 3


def attend_apart(
    attend: Function, attention: Any, x: Any, cu_seqlens: Any, rotary_pos_emb: Any = None
) -> Any:
    """Attend within each part of a sequence (patches, width); ``cu_seqlens`` are their ends."""
    if cu_seqlens.shape[0] - 1 <= _PARTS:
        return attend(attention, x, cu_seqlens, rotary_pos_emb)
    spans = [slice(*ends) for ends in itertools.pairwise(cu_seqlens.tolist())]
    return mx.concatenate(
        [attend(attention, x[one], measure(one), rotary_pos_emb[one]) for one in spans]
    )


def measure(span: slice) -> Any:
    """The boundaries of a single part."""
    return mx.array([0, span.stop - span.start])


PATCH = Patch(
    id="frames-apart",
    every_model=True,
    changes_solo=True,
    targets=wrap(
        (
            "mlx_vlm.models.glm4v.vision:Glm4vVisionAttention.__call__",
            "mlx_vlm.models.ernie4_5_moe_vl.vision:VisionAttention.__call__",
        ),
        attend_apart,
    ),
)
