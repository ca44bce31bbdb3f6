"""``mlx_lm.server`` answers a very short prompt of a thinking model with 404.

Why
    The server looks for the beginning of a thought among the last eleven tokens of a prompt.
    Where there are fewer, the search starts before the first: it runs past the front of the list,
    and the IndexError becomes "404: list index out of range".
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

from ...core.patch import Patch, Target, around


def find_within(
    find: Callable[..., int], *args: Any, start: int | None = None, **kwargs: Any
) -> int:
    """Where a sequence of tokens is; -1 for nowhere."""
    return find(*args, start=first_place(start), **kwargs)


def first_place(start: int | None) -> int | None:
    """The place to start from, in the list."""
    return start if start is None else max(0, start)


PATCH = Patch(
    id="server-short-prompt",
    summary="mlx_lm.server answers 404 to a prompt of a few tokens, where a model thinks",
    targets=(
        Target("mlx-lm", "mlx_lm.tokenizer_utils", "TokenizerWrapper._find", around(find_within)),
    ),
    probe="mlx_patches.probes.server_short_prompt:probe",
    module=__name__,
)
