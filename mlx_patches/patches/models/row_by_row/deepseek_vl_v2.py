"""DeepSeek-VL2: the experts' gate supports only one row."""

from typing import Any

from ..._shared.parts import with_parts
from .offsets import BatchCall


def prepare(call: BatchCall) -> None:
    """Set the batch's mask, and gates for several rows; RoPE accepts one offset per row."""
    call.put_mask()
    if call.rows > 1:
        call.put_decoder(layers=[replace_gate(layer) for layer in call.model.model.layers])


def replace_gate(layer: Any) -> Any:
    """A layer whose experts' gate gets all tokens as one row; unchanged if it has no experts.

    With several rows, the release's gate combines indices by row with indices over all tokens.
    """
    gate = getattr(layer.mlp, "gate", None)
    if gate is None:
        return layer

    def choose(x: Any) -> tuple[Any, ...]:
        """The experts and weights (rows, length, experts) of tokens (rows, length, width)."""
        rows, length = x.shape[:2]
        chosen = gate(x.reshape(1, rows * length, -1))
        return tuple(one.reshape(rows, length, -1) for one in chosen)

    return with_parts(layer, mlp=with_parts(layer.mlp, gate=choose))
