"""Falcon OCR: from mlx-vlm 0.5.0 on, the release's own decode steps are right."""

from __future__ import annotations

import inspect
from typing import Any

from .offsets import REFUSED, RowOffset


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Leave a decode step to the release, which computes its positions by row; refuse a prompt.

    Older releases, refused too, keep one row's delta and tables of positions that all rows share.
    """
    return None if shape[1] == 1 and hasattr(bound.args[0], "_rope_deltas") else REFUSED
