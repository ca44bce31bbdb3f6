"""Check whether a batch has no padding, without waiting for the device."""

from typing import Any

# The cache attribute for the ``left_padding`` array that was read and was all zeros.
_NOTE = "_mlx_patches_unpadded"


def is_unpadded(cache: Any, tokens: int) -> bool:
    """Whether an attention cache is known to have no padding in any row.

    The padding is read while a prompt is fed. At the first chunk this costs nothing, since the
    array was built from a list of numbers. A decode step reads nothing: it reuses the result of
    the prompt as long as the cache holds the same array.

    Returns:
        True if no row has padding. False if a row has some or if this is unknown: while right
        padding is pending, and for rotating caches.
    """
    held = vars(cache)
    padding = held.get("left_padding")
    # With right padding pending, ``finalize`` will change the array in place.
    if getattr(padding, "ndim", 0) != 1 or held.get("_right_padding", cache) is not None:
        held.pop(_NOTE, None)
        return False
    # Before the first token ``prepare`` may change the array in place: read it again.
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
