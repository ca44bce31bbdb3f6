"""Where a prompt can be cut into chunks without splitting an image."""

from typing import Any


def find_cuts(visual: Any) -> list[bool]:
    """For each column, whether a chunk that ends before it splits an image of any row.

    Args:
        visual: the image tokens of prompts (rows, tokens).
    """
    inside: list[bool] = (visual[:, 1:] & visual[:, :-1]).any(axis=0).tolist()
    return [False, *inside]


def splits_image(visual: Any, column: int) -> bool:
    """Whether a chunk that ends before a column splits an image."""
    return 0 < column < visual.shape[1] and find_cuts(visual[:, : column + 1])[column]


def fit_chunks(visual: Any, size: int) -> int | None:
    """The largest size, up to this one, of chunks that split no image; None for a single chunk.

    The last token is always a chunk of its own.
    """
    cuts = find_cuts(visual)
    if cuts[-1]:
        return None
    # Much smaller chunks would cost more than a single one.
    sizes = range(size, size // 4, -1)
    return next((one for one in sizes if not any(cuts[one::one])), None)


def fit_chunk(visual: Any, size: int) -> int | None:
    """The largest size of the next chunk, up to this one, that splits no image.

    A longer one if the chunk begins with an image that does not fit; None if only a chunk of the
    whole prompt does.
    """
    cuts = find_cuts(visual)
    ends = [column for column, inside in enumerate(cuts) if column and not inside]
    return max((end for end in ends if end <= size), default=min(ends, default=None))
