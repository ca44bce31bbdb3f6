"""Find the tokens of a prompt that a call feeds, if it gets the whole prompt's arguments."""

from collections.abc import Sequence
from typing import Any

from .kept import Kept
from .prompt_rows import count_columns

# For an argument of a whole prompt, the column at which the prompt began.
_BEGAN: Kept[list[int]] = Kept(list)


def find_fed(whole: Any, caches: Sequence[Any] | None, length: int) -> slice:
    """The slice of a prompt that a call with ``length`` tokens feeds.

    Args:
        whole: an argument (rows, tokens, ...), the same object in each call for the prompt.
        caches: the model's, which may hold a prefix that is not part of ``whole``.
    """
    start = 0
    if whole.shape[1] > length:
        column, began = count_columns(caches or ()), _BEGAN.of(whole)
        if not began or column < began[0]:  # the prompt's first chunk
            began[:] = [column]
        start = column - began[0]
    return slice(start, start + length)
