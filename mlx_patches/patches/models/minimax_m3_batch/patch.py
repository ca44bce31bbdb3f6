"""MiniMax M3 in a batch: wrong RoPE positions and wrong sparse blocks.

Why: The model computes a batch's positions from state that an earlier call left on the model. A
    merged batch starts again at position 0, a prompt's later chunk clamps the negative positions of
    padding to 0, and a new prompt resets those of decoding rows. In the first call of a padded
    batch, the mask of the layers with sparse attention is not causal: tokens attend to later ones.
    These layers attend to blocks of keys selected by an indexer. In a batch, blocks are counted
    from the start of the padding, so they hold other tokens than in a single request. The indexer
    also reads ``offset`` after the update that changes it in place. A saved batch cannot be
    restored: ``state`` is set on a cache made without ``__init__``. A batch with tokens cannot join
    one without: the latter counts its rows after the new ones were added.
How: The model gets ``position_ids`` from the cache's offsets, and then also builds the causal mask.
    The indexer gets each row's keys from its first token on, and the selected blocks are shifted
    back by the row's padding. ``offset`` is read through a handle. A cache is initialized before
    its state is set, and gets empty index keys before one with index keys joins. Rows without
    padding, and calls with their own mask or positions, are unchanged.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm computes positions and blocks by row.
"""

import importlib
from typing import Any, NamedTuple

from ....core.verbs import Function, Patch, define, mx, wrap
from ..._shared.handles import make_handle
from ..._shared.parts import Overlay
from ..._shared.targets import around_setter

MODULE = "mlx_vlm.models.minimax_m3_vl.language"
_CACHE = "MiniMaxM3BatchKVCache"


def call_with_positions(
    call: Function,
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    given = (mask, kwargs.get("attention_mask"), kwargs.get("position_ids"))
    if inputs.shape[0] > 1 and cache and all(value is None for value in given):
        first: Any = next((layer for layer in cache if layer is not None), None)
        skips_mask = importlib.import_module(MODULE)._can_skip_uniform_batch_decode_mask
        if hasattr(first, "offset") and not skips_mask(cache, inputs.shape[1]):
            kwargs["position_ids"] = count_positions(first.offset, *inputs.shape)
    return call(model, inputs, inputs_embeds, mask, cache, **kwargs)


def count_positions(offset: Any, rows: int, length: int) -> Any:
    """The positions (rows, length) of the next tokens; those of padding are negative."""
    start = mx.array(offset).reshape(-1, 1)
    return mx.broadcast_to(start + mx.arange(length), (rows, length))


class RowBlocks(NamedTuple):
    """The blocks of keys that queries attend to, counted from each row's first token.

    Args:
        blocks: block indices (rows, queries, blocks); -1 for none.
        padding: the left padding of each row, (rows, 1).
    """

    blocks: Any
    padding: Any


def select_row_blocks(
    call: Function,
    indexer: Any,
    x: Any,
    rope: Any,
    rope_offset: Any,
    cache: Any,
    q_start: int,
    mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Select the blocks of each row, as ``RowBlocks`` if rows may have padding."""
    padding = find_padding(cache, mask)
    if padding is None:
        return call(indexer, x, rope, rope_offset, cache, q_start, mask, *args, **kwargs)

    def select_blocks(
        queries: Any, keys: Any, start: int, mask: Any = None, positions: Any = None
    ) -> RowBlocks:
        keys = shift(keys, padding[:, None], axis=2)
        mask = shift(mask, padding[:, None], axis=3)
        blocks = indexer.select_blocks(queries, keys, start, mask, positions - padding)
        return RowBlocks(blocks, padding)

    view = Overlay(indexer, select_blocks=select_blocks)
    return call(view, x, rope, rope_offset, cache, q_start, mask, *args, **kwargs)


def find_padding(cache: Any, mask: Any) -> Any:
    """The left padding (rows, 1) of a batch; None if no row has any, and for a solo cache.

    A decode step of rows without padding has no mask, so the device is not read.
    """
    padding = getattr(cache, "left_padding", None)
    if padding is None or not hasattr(mask, "dtype") or cache._can_skip_decode_mask:
        return None
    return padding[:, None]


def shift(array: Any, columns: Any, axis: int) -> Any:
    """Shift an array of four dimensions, each row by its columns to the left (negative: right).

    The last or first column fills the gap.
    """
    count = array.shape[axis]
    places = mx.clip(mx.arange(count) + columns, 0, count - 1)
    places = places[..., None] if axis == 2 else places[:, :, None]
    array = mx.broadcast_to(array, (columns.shape[0], *array.shape[1:]))
    return mx.take_along_axis(array, places, axis=axis)


def build_row_mask(
    build: Function,
    indexer: Any,
    block_indices: Any,
    mask: Any,
    key_length: int,
    dtype: Any,
    q_positions: Any,
) -> Any:
    """The mask (rows, heads, queries, keys) of the selected blocks."""
    if not isinstance(block_indices, RowBlocks):
        return build(indexer, block_indices, mask, key_length, dtype, q_positions)
    blocks, padding = block_indices
    seen = build(indexer, blocks, None, key_length, dtype, q_positions - padding)
    seen = shift(seen, -padding[:, None], axis=3)
    seen = seen & (mx.arange(key_length) >= padding)[:, None, None]
    return indexer.attention._merge_sparse_mask(seen, mask)


def attend_to_blocks(
    attend: Function,
    attention: Any,
    queries: Any,
    keys: Any,
    values: Any,
    block_indices: Any,
    mask: Any,
    q_positions: Any,
) -> Any:
    """Attend only to the selected blocks; None if the release prefers a mask."""
    if isinstance(block_indices, RowBlocks):
        block_indices = find_columns(block_indices, attention.sparse_block_size)
        # Blocks of one column, since a row's blocks may begin at any column.
        attention = Overlay(attention, sparse_block_size=1)
    return attend(attention, queries, keys, values, block_indices, mask, q_positions)


def find_columns(selected: RowBlocks, size: int) -> Any:
    """The columns (rows, queries, blocks * size) of the selected blocks' tokens; -1 for none."""
    blocks = selected.blocks[..., None]
    columns = blocks * size + mx.arange(size) + selected.padding[..., None, None]
    return mx.where(blocks >= 0, columns, -1).flatten(-2)


def read_offset(get: Function, cache: Any) -> Any:
    """The offsets (rows,) as a new object that updates do not change."""
    return make_handle(get(cache))


def put_state(put: Function, cache: Any, saved: Any) -> None:
    """Set the state of a cache, even if it was made without ``__init__``."""
    initialize_cache(cache)
    put(cache, saved)


def initialize_cache(cache: Any) -> None:
    if "kv_cache" not in vars(cache):
        type(cache).__init__(cache, [0])


def extend_index_keys(extend: Function, cache: Any, other: Any) -> None:
    start_index(cache, other)
    extend(cache, other)


def start_index(cache: Any, other: Any) -> None:
    """Set empty index keys in a batch without tokens if ``other`` has some."""
    keys = getattr(other, "index_keys", None)
    if cache.index_keys is None and keys is not None:
        _, heads, _, width = keys.shape
        cache.index_keys = mx.zeros((cache.offset.shape[0], heads, 0, width), keys.dtype)


PATCH = Patch(
    id="minimax-m3-batch",
    targets=(
        *wrap(f"{MODULE}:LanguageModel.__call__", call_with_positions),
        *wrap(f"{MODULE}:MiniMaxM3Indexer.__call__", select_row_blocks),
        *wrap(f"{MODULE}:MiniMaxM3Indexer.build_block_mask", build_row_mask, supports=True),
        *wrap(
            f"{MODULE}:MiniMaxAttention._sparse_decode_attention", attend_to_blocks, supports=True
        ),
        *wrap(f"{MODULE}:{_CACHE}.offset", read_offset),
        *define(f"{MODULE}:{_CACHE}.state", around_setter(put_state)),
        *wrap(
            f"{MODULE}:{_CACHE}.extend",
            extend_index_keys,
            fingerprint_of=(f"{_CACHE}._extend_index_keys",),
        ),
    ),
)
