"""Gemma 2 in a batch crashes, or masks a row by another row's padding.

Why: The attention scores are (rows, key heads, heads per key head, queries, keys). A single request
    has a mask (queries, keys), a batch has one (rows, 1, queries, keys), which cannot be broadcast
    to the scores or, with as many rows as key heads, is aligned with the wrong axis.
How: A mask of four axes gets the fifth before it reaches the attention.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: The attention accepts a batch's mask in every supported release.
"""

from typing import Any

from ....core.verbs import Patch, argument, family


def add_group_axis(attention: Any, /, mask: Any) -> Any:
    """The mask (rows, 1, queries, keys) for scores (rows, heads, group, queries, keys)."""
    return mask[:, :, None] if attention.repeats > 1 and getattr(mask, "ndim", 0) == 4 else mask


PATCH = Patch(
    id="gemma2-masks",
    targets=argument(family("gemma2", "Attention.__call__"), "mask", add_group_axis),
    probe="mlx_patches.probes.model_batch:probe",
)
