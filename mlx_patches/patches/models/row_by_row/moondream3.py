"""Moondream 3: RoPE and position-dependent scales by row."""

from typing import Any

from ..._shared.parts import with_parts
from .offsets import BatchCall, RowOffset, with_row_rope


def prepare(call: BatchCall) -> None:
    """Set the batch's mask, and attention that uses the rows' offsets."""
    call.put_mask()
    blocks = [
        with_parts(block, attn=attend_by_row(block.attn, call.offset))
        for block in call.model.model.blocks
    ]
    call.put_decoder(blocks=blocks)
    call.put_views()


def attend_by_row(attention: Any, offset: RowOffset) -> Any:
    def tau(x: Any, positions: Any) -> tuple[Any, ...]:
        """The scales (rows, heads, length, 1) of queries and values ``x`` (rows, length, width).

        The release's ``tau`` expects positions shared by all rows, so it gets the tokens of all
        rows as one row.
        """
        rows, length = x.shape[:2]
        own = offset.positions(length).reshape(-1)
        scales = attention.tau(x.reshape(1, rows * length, -1), own)
        return tuple(one.reshape(-1, rows, length, 1).transpose(1, 0, 2, 3) for one in scales)

    return with_row_rope(attention, offset.rows, tau=tau)
