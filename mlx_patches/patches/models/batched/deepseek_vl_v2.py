"""DeepSeek-VL2: the experts' gate takes one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from .offsets import RowOffset, put_mask

MODULE = "mlx_vlm.models.deepseek_vl_v2.language"


def prepare(bound: Any, offset: RowOffset, shape: tuple[int, int]) -> None:
    """The batch's own mask; the model's ropes take an offset a row as it is."""
    put_mask(bound, shape[1])


def gated(call: Callable[..., Any], gate: Any, x: Any) -> Any:
    """The experts of tokens (rows, length, width), and their weights: (rows, length, experts) each.

    The gate adds the places of all tokens to those of each row's: it gets them as one row.
    """
    rows, length = x.shape[:2]
    if rows == 1:
        return call(gate, x)
    chosen, weights = call(gate, x.reshape(1, rows * length, -1))
    return chosen.reshape(rows, length, -1), weights.reshape(rows, length, -1)


TARGETS = (Target("mlx-vlm", MODULE, "MoEGate.__call__", around(gated), supports=True),)
