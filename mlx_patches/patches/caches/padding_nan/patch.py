"""Keep NaN in padding columns from reaching their row's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import LM_CACHES, VLM_CACHES

# The cache attribute for (the ``left_padding`` array that was read, where its padding ends).
_NOTE = "_mlx_patches_padding_end"
# The method of each class that writes a prompt.
_CLASSES = {
    "BatchKVCache": "update_and_fetch",
    "BatchRotatingKVCache": "_update_concat",
}
_QUANTIZED = {"BatchQuantizedKVCache": "update_and_fetch"}


def update_zeroed(update: Callable[..., Any], cache: Any, keys: Any, values: Any) -> Any:
    """Run an update, with zeros at left-padding columns."""
    if not is_padded(cache, keys, values):
        return update(cache, keys, values)
    end = find_padding_end(cache)
    start = find_next_column(cache)
    if start < end:
        keys, values = zero_padding(cache, keys, values)
    held = update(cache, keys, values)
    # A rotating cache drops columns in front, and the end of the padding moves with them.
    note_padding_end(cache, end - (start + keys.shape[2] - cache._idx))
    return held


def is_padded(cache: Any, keys: Any, values: Any) -> bool:
    """Whether keys (rows, heads, tokens, width) are a piece of a prompt, and a row has padding."""
    shape = keys.shape
    if shape[2] == 1 and cache.keys is not None:
        # A decode step has no padding and reads nothing; a piece of a prompt may be as long.
        noted, end = cache.__dict__.get(_NOTE, (None, 0))
        return noted is cache.__dict__["left_padding"] and find_next_column(cache) < end
    # With another number of rows than the cache was made for, their padding is unknown.
    if shape[0] != cache.__dict__["left_padding"].shape[0]:
        return False
    end = find_padding_end(cache)
    # A rotating cache changes the array in place, so reading it at the next piece would wait for
    # the device. Other caches without padding need no note, which copies of them would carry.
    if end > 0 or hasattr(cache, "max_size"):
        note_padding_end(cache, end)
    return end > 0


def find_next_column(cache: Any) -> int:
    """The column at which the next token is written."""
    # A rotating cache puts a wrapped buffer in order of age before it appends.
    column: int = cache.keys.shape[2] if getattr(cache, "rotated", False) else cache._idx
    return column


def find_padding_end(cache: Any) -> int:
    """A column from which on no row has padding; 0 where no row has any."""
    noted, end = cache.__dict__.get(_NOTE, (None, 0))
    return end if noted is cache.__dict__["left_padding"] else read_padding_end(cache)


def read_padding_end(cache: Any) -> int:
    """Read from the array where the padding ends.

    This costs nothing at a batch's first piece, where the array was made from a list of numbers.
    It is read again only after the cache got a new array, because its rows changed.
    """
    return max(cache.__dict__["left_padding"].tolist(), default=0)


def note_padding_end(cache: Any, end: int) -> None:
    """Remember where the padding ends, for as long as the cache holds this array.

    ``finalize`` and a rotating cache may change the array in place. They move only columns that
    are already written, so the note stays true of the columns to come.
    """
    cache.__dict__[_NOTE] = (cache.__dict__["left_padding"], end)


def zero_padding(cache: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """Keys and values (rows, heads, tokens, width) with zeros at left-padding columns."""
    import mlx.core as mx

    start = find_next_column(cache)
    columns = mx.arange(start, start + keys.shape[2])
    padding = (columns < cache.left_padding[:, None])[:, None, :, None]
    return tuple(mx.where(padding, mx.array(0, x.dtype), x) for x in (keys, values))


PADDING_NAN = Patch(
    id="padding-nan",
    summary="Moondream 3, GLM 5 Next and other models in a batch: NaN in left-padded rows",
    targets=tuple(
        Target(*place, f"{name}.{method}", around(update_zeroed), when=is_padded)
        for place, classes in ((LM_CACHES, _CLASSES), (VLM_CACHES, _CLASSES | _QUANTIZED))
        for name, method in classes.items()
    ),
    doc="""NaN in a padding column's key or value reaches the row's real tokens.

    Why
        A model's results at a left-padding position should not matter, but NaN does: the mask
        gives the column the weight 0, and 0 * NaN is NaN. Gemma 3n in mlx-vlm divides 0 by
        0 where the engine pads with zero embeddings; Moondream 3 takes the logarithm of a
        padding position, which is negative. One such column makes all logits of its row NaN.
    How
        Keys and values are made zero at left-padding columns where they enter the cache: one
        ``where`` for each, in the pieces of a prompt that reach into the padding of a row. A
        batch without padding, a later piece and a decode step get no operation. Columns of real
        tokens are not changed, and padding columns have the weight 0, so a row of finite values
        stays the same bit for bit.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        The caches, or the models, keep padding columns finite.
    """,
)
