"""Features that the images of a prompt have for later layers: (rows, tokens, layers, width)."""

from collections.abc import Mapping
from typing import Any

from ...core.verbs import mx
from .prompt_rows import Rows

FEATURES = "deepstack_visual_embeds"
MASK = "visual_pos_masks"


def complete_rows(rows: Rows, lengths: list[int]) -> Rows:
    """The prompts' arguments, each with features and a mask if one of them has features.

    Returns ``rows`` unchanged if all have features, or none has.
    """
    known = [row or {} for row in rows]
    given = [row[FEATURES] for row in known if is_by_row(row)]
    if len(given) in (0, len(known)):
        return rows
    shape, kind = given[0].shape[2:], given[0].dtype
    completed = []
    for row, length in zip(known, lengths, strict=True):
        own = dict(row)
        if own.get(FEATURES) is None:
            own[FEATURES] = mx.zeros((1, length, *shape), kind)
        if own.get(MASK) is None:
            own[MASK] = mx.zeros((1, length), mx.bool_)
        completed.append(own)
    return completed


def is_by_row(arguments: Mapping[str, Any]) -> bool:
    return has_features(arguments.get(FEATURES))


def has_features(deepstack_visual_embeds: Any) -> bool:
    return getattr(deepstack_visual_embeds, "ndim", 0) == 4
