"""Image prompts between their embeddings and the first forward of their tokens.

An image prompt's positions are computed where its embeddings are made, with no cache in sight,
and left on the model, for the next prompt to replace. Here each prompt waits for its turn,
outside of the model, and is found by the first tokens that a row is fed. From then on the row's
record holds it, until the last of its tokens is fed.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# Prompts of one model that wait to be fed. The oldest one goes: its request was cancelled, or
# its host hands over positions itself. A prompt of 2,000 tokens takes 32 KB.
WAITING = 64
_SIZE = 4  # bytes of a token id


@dataclass(frozen=True, eq=False)
class ImagePrompt:
    """A prompt with images or videos, as its positions were computed.

    Args:
        tokens: its ids, as the bytes of int32.
        positions: of the tokens, (3, 1, length).
        padding: how many of the first tokens are padding.
    """

    tokens: bytes
    positions: Any
    padding: int = 0

    def __deepcopy__(self, memo: Any) -> ImagePrompt:
        """Itself: nobody changes it, and copies of a cache may share it."""
        return self


class RowPrompt(NamedTuple):
    """An image prompt as a row is fed it: without the padding, or with it as if it were tokens."""

    prompt: ImagePrompt
    skipped: int

    @property
    def length(self) -> int:
        """Its number of tokens."""
        return len(self.prompt.tokens) // _SIZE - self.skipped

    def tokens(self, start: int, end: int) -> bytes:
        """Its tokens from ``start`` to ``end``, as many as it has."""
        first = self.skipped + start
        return self.prompt.tokens[first * _SIZE : (self.skipped + end) * _SIZE]

    def fits(self, start: int, text: bytes) -> bool:
        """Whether these are its tokens from ``start`` on; right padding may follow its end."""
        own = self.tokens(start, start + len(text) // _SIZE)
        return bool(own) and text.startswith(own)

    def delta(self, end: int) -> Any:
        """How far the position after its first ``end`` tokens is from their number, (1, 1)."""
        import mlx.core as mx

        own = self._positions(0, max(1, end))
        return (own.max() + 1 - own.shape[-1]).reshape(1, 1).astype(mx.int32)

    def positions(self, start: int, end: int) -> Any:
        """Of the tokens from ``start`` to ``end``, (3, 1, tokens); they count on past its end."""
        import mlx.core as mx

        own = self._positions(start, end)
        beyond = mx.arange(start + own.shape[-1], max(start, end)) + self.delta(end)
        parts = [own, mx.broadcast_to(beyond, (3, *beyond.shape))]
        return mx.concatenate(parts, axis=-1).astype(own.dtype)

    def _positions(self, start: int, end: int) -> Any:
        whole, skipped = self.prompt.positions, self.skipped
        own = whole[:, :, skipped + start : skipped + end]
        # Releases count on from the padding, or give it a position that it does not count.
        return own - whole[:, :, skipped : skipped + 1] if skipped else own


class Waiting:
    """The image prompts of one model that no row has been fed, and those that rows are fed.

    Thread-safe. The latter are only found here: the records of the rows keep them alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[ImagePrompt] = []
        self._claimed: weakref.WeakSet[ImagePrompt] = weakref.WeakSet()
        self._newest: Callable[[], Any] = lambda: None
        self.noted = 0  # prompts so far

    def __bool__(self) -> bool:
        """Whether a row may be fed an image prompt whose positions are here."""
        return bool(self._queue or self._claimed)

    def note(self, prompts: Sequence[ImagePrompt], returned: Any) -> None:
        """Let prompts wait, whose positions the model returned in one array."""
        with self._lock:
            self._queue = [*self._queue, *prompts][-WAITING:]
            self._newest = weakref.ref(returned)
            self.noted += len(prompts)

    def left_on(self, model: Any) -> bool:
        """Whether the positions that the model holds are those of an image prompt."""
        held = getattr(model, "_position_ids", None)
        return held is not None and held is self._newest()

    def claim(self, text: bytes) -> RowPrompt | None:
        """The prompt of a row that is fed these tokens first; it waits no longer.

        Prompts with the same tokens, and other images, are claimed in the order in which they
        were noted; one that waits goes before those that other rows are fed.
        """
        if not text:
            return None
        with self._lock:
            found = _find(self._queue, text)
            if found is None:
                return _find(self._claimed, text)
            self._queue.remove(found.prompt)
            self._claimed.add(found.prompt)
            return found

    def give_back(self, row: RowPrompt) -> None:
        """Let a prompt wait again: a row with the same first tokens had claimed it."""
        with self._lock:
            if row.prompt not in self._queue:
                self._claimed.discard(row.prompt)
                self._queue.insert(0, row.prompt)


def _find(prompts: Iterable[ImagePrompt], text: bytes) -> RowPrompt | None:
    """The first prompt that begins with these tokens, or else the longest that they begin with."""
    ended: RowPrompt | None = None
    for prompt in prompts:
        for skipped in sorted({0, prompt.padding}):
            row = RowPrompt(prompt, skipped)
            if not row.fits(0, text):
                continue
            if row.length * _SIZE >= len(text):
                return row
            if ended is None or row.length > ended.length:
                ended = row  # right padding follows
    return ended


# By the id of the model: a module of MLX has no hash.
_models: dict[int, tuple[Any, Waiting]] = {}
_models_lock = threading.Lock()


def waiting_prompts(model: Any) -> Waiting:
    """The image prompts of a model that wait; they go with the model."""
    found = _models.get(id(model))
    if found is not None and found[0]() is model:
        return found[1]
    with _models_lock:
        key = id(model)
        found = _models.get(key)
        if found is None or found[0]() is not model:
            found = (weakref.ref(model, lambda gone: _forget(key, gone)), Waiting())
            _models[key] = found
        return found[1]


def _forget(key: int, gone: Any) -> None:
    # Another model may have the id by now.
    if (found := _models.get(key)) is not None and found[0] is gone:
        _models.pop(key, None)


def note_prompts(index: Callable[..., Any]) -> Callable[..., Any]:
    """``get_rope_index`` that notes what it returns for prompts with images or videos."""
    signature = inspect.signature(index)

    @functools.wraps(index)
    def replacement(model: Any, *args: Any, **kwargs: Any) -> Any:
        out = index(model, *args, **kwargs)
        given = signature.bind(model, *args, **kwargs).arguments
        grids = [value for name, value in given.items() if name.endswith("_grid_thw")]
        if any(grid is not None for grid in grids):
            prompts = split_prompts(given["input_ids"], out[0], given.get("attention_mask"))
            waiting_prompts(model).note(prompts, out[0])
        return out

    return replacement


def split_prompts(ids: Any, positions: Any, mask: Any = None) -> list[ImagePrompt]:
    """Each row's prompt, from ids and mask (rows, length) and positions (3, rows, length)."""
    if positions.shape != (3, *ids.shape):
        return []
    padding = [0] * ids.shape[0] if mask is None else mask.argmax(axis=-1).tolist()
    return [
        ImagePrompt(as_bytes(ids[row]), positions[:, row : row + 1], pad)
        for row, pad in enumerate(padding)
    ]


def as_bytes(ids: Any) -> bytes:
    """Token ids, of one axis."""
    import mlx.core as mx

    return bytes(memoryview(ids.astype(mx.int32)))


def follow_prompts(
    waiting: Waiting, held: Sequence[RowPrompt | None], starts: Sequence[int], ids: Any
) -> list[RowPrompt | None]:
    """The image prompt that each row is fed a piece of, None for a row of text.

    Reads the tokens from the device.

    Args:
        waiting: the prompts of the model.
        held: what each row was fed so far.
        starts: where in its text each row's piece begins, negative in what is left of its
            padding.
        ids: the piece, (rows, length).
    """
    pieces = [as_bytes(ids[row, max(0, -start) :]) for row, start in enumerate(starts)]
    # Rows that began with the same tokens may have each other's: all give theirs back first.
    texts = []
    for row, start, piece in zip(held, starts, pieces, strict=True):
        text = piece if start <= 0 else b""
        if row is not None and not row.fits(max(0, start), piece):
            text = row.tokens(0, max(0, start)) + piece
            if start < row.length and len(piece) > _SIZE:  # no token that was generated
                waiting.give_back(row)
        texts.append(text)
    return [
        row if row is not None and row.fits(max(0, start), piece) else waiting.claim(text)
        for row, start, piece, text in zip(held, starts, pieces, texts, strict=True)
    ]
