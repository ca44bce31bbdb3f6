"""DeepSeek-VL2: the experts' gate takes only one row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..._shared.parts import with_parts
from .offsets import RowOffset, put_layers, put_mask


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """Set the batch's mask, and gates that take several rows; the ropes accept an offset a row."""
    put_mask(bound, shape[1])
    if shape[0] > 1:
        put_layers(bound, "layers", [with_gate(layer) for layer in bound.args[0].model.layers])


def with_gate(layer: Any) -> Any:
    """A layer whose experts' gate takes several rows; the layer itself if it has no experts."""
    gate = getattr(layer.mlp, "gate", None)
    return layer if gate is None else with_parts(layer, mlp=with_parts(layer.mlp, gate=Gate(gate)))


class Gate:
    """A gate that passes all tokens on as one row.

    With several rows, the release's gate combines indices by row with indices over all tokens.
    """

    def __init__(self, gate: Callable[[Any], tuple[Any, Any]]):
        self.gate = gate

    def __call__(self, x: Any) -> tuple[Any, ...]:
        """Experts and weights (rows, length, experts) of tokens (rows, length, width)."""
        rows, length = x.shape[:2]
        chosen = self.gate(x.reshape(1, rows * length, -1))
        return tuple(one.reshape(rows, length, -1) for one in chosen)
