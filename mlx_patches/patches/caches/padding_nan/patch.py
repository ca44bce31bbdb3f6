"""Keep NaN in padding columns from reaching their row's tokens."""

from typing import Any

from ....core.verbs import Function, Patch, in_caches, mx, wrap

# The cache attribute for (the ``left_padding`` array that was read, the column at which it ends).
_NOTE = "_mlx_patches_padding_end"


def update_without_nan(update: Function, cache: Any, keys: Any, values: Any) -> Any:
    """Run an update with zeros in left-padding columns."""
    end = find_padding_end(cache)
    start = find_next_column(cache)
    if start < end:
        keys, values = zero_padding(cache, keys, values)
    held = update(cache, keys, values)
    # A rotating cache drops columns in front, and the end of the padding moves with them.
    note_padding_end(cache, end - (start + keys.shape[2] - cache._idx))
    return held


def is_padded(cache: Any, /, keys: Any) -> bool:
    """Whether keys (rows, heads, tokens, width) are a prompt chunk, and a row has padding."""
    shape = keys.shape
    if shape[2] == 1 and cache.keys is not None:
        # A decode step has no padding and reads nothing; a chunk may also have one token.
        noted, end = cache.__dict__.get(_NOTE, (None, 0))
        return noted is cache.__dict__["left_padding"] and find_next_column(cache) < end
    # The padding is unknown if there are more or fewer rows than the cache was made for.
    if shape[0] != cache.__dict__["left_padding"].shape[0]:
        return False
    end = find_padding_end(cache)
    # A rotating cache changes the array in place, so reading it at the next chunk would wait for
    # the device. Other caches without padding need no note.
    if end > 0 or hasattr(cache, "max_size"):
        note_padding_end(cache, end)
    return end > 0


def find_next_column(cache: Any) -> int:
    # A rotating cache puts a wrapped buffer in order of age before it appends.
    column: int = cache.keys.shape[2] if getattr(cache, "rotated", False) else cache._idx
    return column


def find_padding_end(cache: Any) -> int:
    """The first column after all padding; 0 if no row has any."""
    noted, end = cache.__dict__.get(_NOTE, (None, 0))
    return end if noted is cache.__dict__["left_padding"] else read_padding_end(cache)


def read_padding_end(cache: Any) -> int:
    """Read the column at which the padding ends.

    This costs nothing at a batch's first chunk, since the array was made from a list of numbers.
    It is read again only when the cache has a new array, because its rows changed.
    """
    return max(cache.__dict__["left_padding"].tolist(), default=0)


def note_padding_end(cache: Any, end: int) -> None:
    """Note the column at which the padding ends, for as long as the cache holds this array.

    ``finalize`` and a rotating cache may change the array in place. They only move columns that
    are already written, so the note stays right for later columns.
    """
    cache.__dict__[_NOTE] = (cache.__dict__["left_padding"], end)


def zero_padding(cache: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """Keys and values (rows, heads, tokens, width) with zeros in left-padding columns."""
    start = find_next_column(cache)
    columns = mx.arange(start, start + keys.shape[2])
    padding = (columns < cache.left_padding[:, None])[:, None, :, None]
    return tuple(mx.where(padding, mx.array(0, x.dtype), x) for x in (keys, values))


PADDING_NAN = Patch(
    id="padding-nan",
    targets=wrap(
        (
            *in_caches("BatchKVCache.update_and_fetch BatchRotatingKVCache._update_concat"),
            "mlx_vlm.models.cache:BatchQuantizedKVCache.update_and_fetch",
        ),
        update_without_nan,
        when=is_padded,
    ),
    doc="""Moondream 3, GLM 5 Next and other models in a batch: NaN in left-padded rows.

    Why: The mask gives a padding column the weight 0, but 0 * NaN is NaN. Gemma 3n in mlx-vlm
        divides 0 by 0 if the engine pads with zero embeddings; Moondream 3 takes the logarithm of a
        padding position, which is negative. One such column spoils its whole row.
    How: Left-padding columns of keys and values are set to zero when they enter the cache: one
        ``where`` for each, only in chunks that contain padding. A batch without padding, a later
        chunk and a decode step get no operation. Columns of real tokens do not change, and padding
        columns have the weight 0, so rows of finite values are bit-identical.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: The caches, or the models, keep padding columns finite.
    """,
)
