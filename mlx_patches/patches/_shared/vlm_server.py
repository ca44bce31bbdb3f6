"""What patches of mlx-vlm's server share."""

from __future__ import annotations

from typing import Any


def find_generation_arguments(
    server: Any,
    prompt: Any,
    images: Any = None,
    audio: Any = None,
    args: Any = None,
    *more: Any,
    **options: Any,
) -> Any:
    """The request's part of a call of ``ResponseGenerator.generate``; None if it has none."""
    return args
