"""``mlx_lm.server`` answers a very short prompt of a thinking model with 404.

Why
    The server looks for the start of a thought among the last eleven tokens of a prompt. In a
    shorter prompt the search starts at a negative index: it runs past the front of the list, and
    the IndexError becomes "404: list index out of range".
How
    A search never starts before the first token.
Upstream
    mlx-lm 1326, 1327, 1360; 0.32.0 does the same.
Retire when
    No supported release is older than mlx-lm 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def find_within(
    find: Callable[..., int], *args: Any, start: int | None = None, **kwargs: Any
) -> int:
    """The index of a sequence of tokens; -1 if it is not found."""
    return find(*args, start=first_place(start), **kwargs)


def first_place(start: int | None) -> int | None:
    """The index to start from, at least 0; None stays None."""
    return start if start is None else max(0, start)


PATCH = Patch(
    id="server-short-prompt",
    severity="crash",
    every_model=True,
    summary="mlx_lm.server answers 404 to very short prompts of thinking models",
    targets=(
        Target("mlx-lm", "mlx_lm.tokenizer_utils", "TokenizerWrapper._find", around(find_within)),
    ),
)
