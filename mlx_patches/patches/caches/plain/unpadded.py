"""Whether no row of a batch has padding, known without waiting for the device."""

from __future__ import annotations

from typing import Any

# Where a cache keeps the array of zeros that its padding was read from.
_NOTE = "_mlx_patches_unpadded"


def is_unpadded(cache: Any, tokens: int) -> bool:
    """Whether no row of an attention cache has padding; False where that is not known.

    It reads the padding as a prompt is fed: at its first piece that costs nothing, since the
    array was made from a list of numbers. A decode step uses what a prompt found, for as long as
    the cache holds the same array, and reads nothing. Right padding that is pending, and windows,
    are not known.

    Args:
        cache: of one layer.
        tokens: how many are fed next.
    """
    held = vars(cache)
    padding = held.get("left_padding")
    # Of these releases alone: ``finalize`` changes the array in place.
    if getattr(padding, "ndim", 0) != 1 or held.get("_right_padding", cache) is not None:
        held.pop(_NOTE, None)
        return False
    # Before the first token ``prepare`` may change it in place.
    if held.get("keys") is not None:
        if held.get(_NOTE) is padding:
            return True
        if tokens == 1:
            return False
    held.pop(_NOTE, None)
    if any(padding.tolist()):
        return False
    held[_NOTE] = padding
    return True
