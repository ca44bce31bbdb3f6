"""AFM 7: in layers that reuse keys, queries get each row's RoPE positions."""

from ..._shared.parts import view, with_parts
from .offsets import BatchCall, with_row_rope


def prepare(call: BatchCall) -> None:
    """Pass the rows' offsets to the layers that reuse keys, which get keys but no cache."""
    layers = [
        with_parts(layer, self_attn=with_row_rope(layer.self_attn, call.offset.rows))
        for layer in call.model.model.kv_reuse_layers
    ]
    call.put_decoder(kv_reuse_layers=layers)
    *others, last = call.get("cache")
    # Only keys and values, as in the state of a single row's cache.
    pair = view(last, state=lambda cache: cache.state[:2])
    call.put("cache", [*others, pair])
