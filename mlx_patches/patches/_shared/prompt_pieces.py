"""Which tokens of a prompt a call feeds, where a release passes the whole prompt's arguments."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from .prompt_rows import count_columns

# By the id of an argument of a whole prompt: a reference to it, and the column at which it began.
_began: dict[int, tuple[Any, int]] = {}


def find_fed(whole: Any, caches: Sequence[Any] | None, length: int) -> slice:
    """The tokens of a prompt that a call with ``length`` tokens feeds.

    Args:
        whole: an argument (rows, tokens, ...), the same object in each call for the prompt.
        caches: the model's, which may hold a prefix that is no part of ``whole``.
    """
    start = 0
    if whole.shape[1] > length:
        start = since_beginning(whole, count_columns(caches or ()))
    return slice(start, start + length)


def since_beginning(whole: Any, column: int) -> int:
    """How many tokens of a prompt have been fed; its first piece comes first."""
    key = id(whole)
    held, start = _began.get(key, (None, 0))
    if held is None or held() is not whole or column < start:
        start = column
        _began[key] = (weakref.ref(whole, lambda gone: forget(key, gone)), start)
    return column - start


def forget(key: int, gone: Any) -> None:
    """Drop the entry of an argument that is gone; another may have the same id by now."""
    if _began.get(key, (None,))[0] is gone:
        _began.pop(key, None)
