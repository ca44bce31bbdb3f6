"""What a model computed for its image prompts, found again by the prompt's tokens.

An image prompt's positions are computed where its embeddings are made, and left on the model,
for the next prompt to replace. Here they are kept for each prompt, and a row of a batch gets
those of the tokens that it is fed, in however many pieces.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PROMPTS = "_mlx_patches_image_prompts"
FED = "_mlx_patches_fed"
# Prompts whose embeddings wait for their turn; a prompt of 2,000 tokens takes 32 KB.
KEPT = 256
_SIZE = 4  # bytes of a token id


@dataclass(frozen=True)
class Prompt:
    """A prompt with images or videos.

    Args:
        tokens: its ids, as the bytes of int32.
        positions: of the tokens, (3, 1, length).
        whole: the array that the model returned, for all prompts that it was given.
    """

    tokens: bytes
    positions: Any
    whole: Any

    def delta(self, end: int) -> Any:
        """How far the position after its first tokens is from their number, (1, 1)."""
        own = self.positions[:, :, : max(1, end)]
        return (own.max() + 1 - own.shape[-1]).reshape(1, 1)

    def between(self, start: int, end: int) -> Any:
        """The positions of tokens from ``start`` to ``end``, counting on past its own end."""
        import mlx.core as mx

        own = self.positions[:, :, start:end]
        beyond = mx.arange(start + own.shape[-1], max(start, end)) + self.delta(end)
        parts = [own, mx.broadcast_to(beyond, (3, *beyond.shape))]
        return mx.concatenate(parts, axis=-1).astype(own.dtype)


def noting(index: Callable[..., Any]) -> Callable[..., Any]:
    """``get_rope_index`` that notes what it returns for prompts with images or videos."""
    signature = inspect.signature(index)

    @functools.wraps(index)
    def replacement(model: Any, *args: Any, **kwargs: Any) -> Any:
        out = index(model, *args, **kwargs)
        given = signature.bind(model, *args, **kwargs).arguments
        grids = [value for name, value in given.items() if name.endswith("_grid_thw")]
        if any(grid is not None for grid in grids):
            note(model, given["input_ids"], out[0], given.get("attention_mask"))
        return out

    return replacement


def note(model: Any, ids: Any, positions: Any, mask: Any) -> None:
    """Keep the positions (3, rows, length) of these prompts; of padded ones without padding too."""
    if positions.shape != (3, *ids.shape):
        return
    kept = model.__dict__.setdefault(PROMPTS, deque(maxlen=KEPT))
    padding = [0] * ids.shape[0] if mask is None else mask.argmax(axis=-1).tolist()
    for row, pad in enumerate(padding):
        for start in sorted({0, pad}):
            tokens, own = as_bytes(ids[row, start:]), positions[:, row : row + 1, start:]
            kept.append(Prompt(tokens, own - start if start else own, positions))


def as_bytes(ids: Any) -> bytes:
    """Token ids, of one axis."""
    import mlx.core as mx

    return bytes(memoryview(ids.astype(mx.int32)))


def fed(carrier: Any, offsets: Sequence[int], ids: Any) -> list[bytes]:
    """What each row has been fed from its beginning on, empty where that is not known.

    Args:
        carrier: the rows' cache, that keeps what they have been fed.
        offsets: of the rows in the cache, negative in what is left of their padding.
        ids: (rows, length), of the tokens that are going to be fed.
    """
    before = carrier.__dict__.get(FED, [])
    if [len(row) // _SIZE for row in before] != [max(0, offset) for offset in offsets]:
        before = [b""] * len(offsets)
    rows = []
    for row, (offset, text) in enumerate(zip(offsets, before, strict=True)):
        text += as_bytes(ids[row, max(0, -offset) :])
        # Of anything else that is in the cache the tokens are not known.
        known = len(text) // _SIZE == offset + ids.shape[1] > 0
        rows.append(text if known else b"")
    carrier.__dict__[FED] = rows
    return rows


def prompts(model: Any) -> Sequence[Prompt]:
    """The prompts that were noted, the newest last."""
    kept: Sequence[Prompt] = model.__dict__.get(PROMPTS, ())
    return kept


def found(kept: Sequence[Prompt], rows: Sequence[bytes]) -> list[Prompt | None]:
    """The prompt of each row.

    Rows with the same tokens, and other images, are in the order in which they were noted.
    """
    chosen: list[Prompt | None] = []
    for index, row in enumerate(rows):
        fits = of(kept, row)
        same = [other for other in range(len(rows)) if rows[other] == row]
        chosen.append(fits[same.index(index) - len(same) :][0] if fits else None)
    return chosen


def of(kept: Sequence[Prompt], row: bytes) -> list[Prompt]:
    """The prompts that begin with a row's tokens, or else the longest that it begins with."""
    if not row:
        return []
    begun = [prompt for prompt in kept if prompt.tokens.startswith(row)]
    if begun:
        return begun
    # Right padding follows.
    ended = [prompt for prompt in kept if row.startswith(prompt.tokens)]
    longest = max((len(prompt.tokens) for prompt in ended), default=0)
    return [prompt for prompt in ended if len(prompt.tokens) == longest]
