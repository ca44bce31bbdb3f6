"""The states of images that a model's cross-attention reads, for the rows of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.arrays import mx


# Not compared by value: that would read its array from the device.
@dataclass(frozen=True, slots=True, eq=False)
class ImageStates:
    """States of rows' images, padded on the right. Immutable: copies of a cache share them.

    Args:
        states: (rows, length, width), zeros in a row without an image.
        counts: the number of each row's own states, 0 in a row without an image.
        shown: which states a row's next token attends to, (rows, 1, 1, length); None for its own.
    """

    states: Any
    counts: tuple[int, ...]
    shown: Any = None

    def take_rows(self, rows: Sequence[int]) -> "ImageStates | None":
        counts = tuple(self.counts[row] for row in rows)
        if not any(counts):
            return None
        kept, longest = mx.array(rows), max(counts)
        shown = None if self.shown is None else self.shown[kept][..., :longest]
        return ImageStates(self.states[kept][:, :longest], counts, shown)

    def mask(self) -> Any:
        """``shown``, or which states are each row's own."""
        if self.shown is not None:
            return self.shown
        own = mx.arange(self.states.shape[1]) < mx.array(self.counts)[:, None]
        return own[:, None, None]


def join_states(parts: Sequence[ImageStates | None], rows: Sequence[int]) -> ImageStates | None:
    """Join the states of several batches; None if no row has an image."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    length = max(part.states.shape[1] for part in given)
    width, dtype = given[0].states.shape[2], given[0].states.dtype
    has_mask = any(part.shown is not None for part in given)
    arrays, counts, masks = [], [], []
    for part, count in zip(parts, rows, strict=True):
        if part is None:
            arrays.append(mx.zeros((count, length, width), dtype))
            counts += [0] * count
            masks.append(mx.zeros((count, 1, 1, length), mx.bool_))
        else:
            missing = length - part.states.shape[1]
            arrays.append(mx.pad(part.states, [(0, 0), (0, missing), (0, 0)]))
            counts += part.counts
            masks.append(mx.pad(part.mask(), [(0, 0)] * 3 + [(0, missing)]))
    shown = mx.concatenate(masks) if has_mask else None
    return ImageStates(mx.concatenate(arrays), tuple(counts), shown)
