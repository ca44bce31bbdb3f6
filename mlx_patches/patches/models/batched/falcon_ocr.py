"""Falcon OCR: a decode step is right by itself from mlx-vlm 0.5.0 on."""

from __future__ import annotations

import inspect
from typing import Any

from .offsets import REFUSED, RowOffset


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Nothing: the release counts a step's positions by row.

    Older releases keep one row's delta, and have tables for positions that all rows share.
    """
    return None if shape[1] == 1 and hasattr(bound.args[0], "_rope_deltas") else REFUSED
