"""mlx-vlm: a batch of prompts with images crashes if their masks differ in shape.

Why: The batch generator joins each argument of the rows that have it. A text row has no mask of
    image tokens, so the batch's mask has fewer rows than the batch. It also joins masks that no
    language model reads: pixel masks, whose shape depends on the number and size of the images;
    prompt masks of PaliGemma, Gemma 3 and DeepSeek-VL2, and Molmo's image positions, whose shape
    depends on the prompt. Every request of the batch then ends in an error.
How: Before rows are joined, a row without images gets a mask of False if another row has one. Masks
    that no language model reads are dropped if they cannot be joined.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: Each row of the generator has a mask, and the server keeps what only the vision tower
    reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ....core.verbs import Patch, mx
from ..._shared.prompt_rows import Rows, change_prompts

MASK = "visual_pos_masks"
UNREAD = (
    "pixel_attention_mask",
    "attention_mask_4d",
    "images_seq_mask",
    "image_input_idx",
    "image_masks",
)
# An argument of the models whose language model reads such a mask.
READER = "pos_hw"


def complete_rows(rows: Rows, lengths: list[int]) -> Rows:
    """The prompts' arguments, each with a mask of image tokens if one has it, without ragged masks.

    Returns ``rows`` unchanged if they can be joined.
    """
    if len(rows) < 2:
        return rows
    known = [row or {} for row in rows]
    with_mask = sum(row.get(MASK) is not None for row in known)
    ragged = find_ragged(known)
    if not ragged and with_mask in (0, len(known)):
        return rows
    completed = []
    for row, length in zip(known, lengths, strict=True):
        own = {name: value for name, value in row.items() if name not in ragged}
        if with_mask and own.get(MASK) is None:
            own[MASK] = mx.zeros((1, length), mx.bool_)
        completed.append(own)
    return completed


def find_ragged(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The masks of ``UNREAD`` that differ in shape by more than their first axis."""
    if any(row.get(READER) is not None for row in rows):
        return []
    return [
        name
        for name in UNREAD
        if len({row[name].shape[1:] for row in rows if row.get(name) is not None}) > 1
    ]


PATCH = Patch(
    id="image-rows",
    severity="crash",
    targets=change_prompts(lambda rows, lengths: complete_rows(rows, lengths), (MASK, *UNREAD)),
)
