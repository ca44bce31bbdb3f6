"""AFM 7: in layers that reuse keys, queries get each row's RoPE positions."""

import inspect

from ..._shared.parts import view, with_parts
from ..._shared.row_calls import find_argument
from .offsets import RowOffset, put_argument, put_decoder, with_row_rope


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """Pass the rows' offsets to the layers that reuse keys, which get keys but no cache."""
    layers = [
        with_parts(layer, self_attn=with_row_rope(layer.self_attn, offset.rows))
        for layer in bound.args[0].model.kv_reuse_layers
    ]
    put_decoder(bound, kv_reuse_layers=layers)
    *others, last = find_argument(bound, "cache")
    # Only keys and values, as in the state of a single row's cache.
    pair = view(last, state=lambda cache: cache.state[:2])
    put_argument(bound, "cache", [*others, pair])
