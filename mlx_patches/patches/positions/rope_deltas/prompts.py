"""A queue of image prompts whose positions are computed, but whose tokens are not yet fed.

A model computes an image prompt's positions with its embeddings, before the prompt has a cache,
and stores them on itself, where the next prompt overwrites them. This module queues each prompt
outside the model, and finds it by the first tokens that a row is fed. The row's record then holds
the prompt until the last of its tokens is fed.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....core.arrays import mx
from ..._shared.callers import callers
from ..._shared.kept import Kept

# The length of a model's queue. The oldest prompt is dropped first: its request was cancelled, or
# its host passes positions itself. A prompt of 2,000 tokens takes 32 KB.
WAITING = 64
_SIZE = 4  # bytes of a token id


@dataclass(frozen=True, eq=False)
class ImagePrompt:
    """A prompt with images or videos, and its computed positions.

    Args:
        tokens: its token ids, as the bytes of int32.
        positions: the position ids of its tokens, (3, 1, length).
        padding: the number of pad tokens at its beginning.
    """

    tokens: bytes
    positions: Any
    padding: int = 0

    def __deepcopy__(self, memo: Any) -> "ImagePrompt":
        """Return the prompt itself: it is immutable, and copies of a cache may share it."""
        return self


class RowPrompt(NamedTuple):
    """An image prompt as it is fed to a row.

    Args:
        skipped: the number of its first tokens that are not fed: all of its padding, or 0.
        since: the number of its tokens that the row held before those that identified it.
    """

    prompt: ImagePrompt
    skipped: int
    since: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt.tokens) // _SIZE - self.skipped

    def tokens(self, start: int, end: int) -> bytes:
        first = self.skipped + start
        return self.prompt.tokens[first * _SIZE : (self.skipped + end) * _SIZE]

    def fits(self, start: int, text: bytes) -> bool:
        """Whether ``text`` is its tokens from ``start``; right padding may follow its end."""
        own = self.tokens(start, start + len(text) // _SIZE)
        return bool(own) and text.startswith(own)

    def delta(self, end: int) -> Any:
        """The next position after its first ``end`` tokens minus their number, (1, 1)."""
        own = self._positions(0, max(1, end))
        return (own.max() + 1 - own.shape[-1]).reshape(1, 1).astype(mx.int32)

    def positions(self, start: int, end: int) -> Any:
        """The position ids (3, 1, tokens) from ``start`` to ``end``, which may be past its end."""
        own = self._positions(start, end)
        beyond = mx.arange(start + own.shape[-1], max(start, end)) + self.delta(end)
        parts = [own, mx.broadcast_to(beyond, (3, *beyond.shape))]
        return mx.concatenate(parts, axis=-1).astype(own.dtype)

    def _positions(self, start: int, end: int) -> Any:
        whole, skipped = self.prompt.positions, self.skipped
        own = whole[:, :, skipped + start : skipped + end]
        # Releases may count padding as positions: subtract the position of the first token.
        return own - whole[:, :, skipped : skipped + 1] if skipped else own


class Waiting:
    """The image prompts of one model: a queue, and those claimed by rows.

    Thread-safe. Claimed prompts are referenced weakly: the records of the rows keep them alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[ImagePrompt] = []
        self._claimed: weakref.WeakSet[ImagePrompt] = weakref.WeakSet()
        self._newest: Sequence[Callable[[], ImagePrompt | None]] = ()
        self._newest_positions: Callable[[], Any] = lambda: None
        self.noted = 0  # number of prompts so far
        # The newest texts with computed positions: the array of these, and the token ids.
        self._texts: list[tuple[Callable[[], Any], Any]] = []

    def __bool__(self) -> bool:
        """Whether a row may be fed a prompt."""
        return bool(self._queue or self._claimed)

    def note(self, prompts: Sequence[ImagePrompt], returned: Any) -> None:
        with self._lock:
            self._queue = [*self._queue, *prompts][-WAITING:]
            self._newest = [weakref.ref(prompt) for prompt in prompts]
            self._newest_positions = weakref.ref(returned)
            self.noted += len(prompts)

    def note_text(self, ids: Any, returned: Any) -> None:
        """Record the token ids of a text with computed positions, and the array of these."""
        array: Callable[[], Any] = weakref.ref(returned)
        with self._lock:
            held: list[Any] = []
            for text in self._texts:  # Python 3.11 counts a comprehension as a call
                if text[0]() is not None:
                    held += [text]
            self._texts = [*held, (array, ids)][-WAITING:]

    def is_stored_on(self, model: Any) -> bool:
        """Whether the positions of the newest image prompts are stored on the model."""
        held = getattr(model, "_position_ids", None)
        return held is not None and held is self._newest_positions()

    def continues_newest(self, starts: Sequence[int], ids: Any) -> bool:
        """Whether any row's chunk may be of one of the newest image prompts; reads the tokens."""
        newest = [RowPrompt(prompt, skipped=0) for ref in self._newest if (prompt := ref())]
        chunks = [(max(0, start), as_bytes(row)) for start, row in zip(starts, ids, strict=True)]
        return any(prompt.fits(*chunk) for prompt in newest for chunk in chunks)

    def continues_computed(self, start: int, ids: Any) -> bool:
        """Whether a chunk is of the newest text with computed positions; reads the tokens."""
        return any(_is_part(text, start, ids) for _, text in self._texts[-1:])

    def are_of(self, positions: Any, start: int, ids: Any) -> bool:
        """Whether an array of positions was computed for a text with this chunk; reads both."""
        texts = [text for ref, text in self._texts if ref() is positions]
        return any(_is_part(text, start, ids) for text in texts)

    def claim(self, text: bytes, start: int = 0, delta: int | None = None) -> RowPrompt | None:
        """Find the prompt of a row by its first tokens, and remove it from the queue.

        Prompts with the same tokens but different images are claimed in the order in which they
        were queued. A queued prompt is preferred to one that another row has claimed.
        """
        if not text:
            return None
        with self._lock:
            found = _find(self._queue, text, start, delta)
            if found is None:
                return _find(self._claimed, text, start, delta)
            self._queue.remove(found.prompt)
            self._claimed.add(found.prompt)
            return found

    def give_back(self, row: RowPrompt) -> None:
        """Put a prompt back on the queue, if a row with the same first tokens had claimed it."""
        with self._lock:
            if row.prompt not in self._queue:
                self._claimed.discard(row.prompt)
                self._queue.insert(0, row.prompt)


def _is_part(text: Any, start: int, ids: Any) -> bool:
    own = text[:, start : start + ids.shape[1]]
    return bool(own.shape == ids.shape and (own == ids).all().item())


def _find(
    prompts: Iterable[ImagePrompt], text: bytes, start: int, delta: int | None
) -> RowPrompt | None:
    """The first prompt with ``text`` at ``start``, or else the longest that ends within it."""
    ended: RowPrompt | None = None
    for prompt in prompts:
        for skipped in sorted({0, prompt.padding}):
            row = RowPrompt(prompt, skipped, start)
            if not row.fits(start, text):
                continue
            if start and delta is not None and row.delta(start).item() != delta:
                continue  # the tokens from the prefix cache belong to another prompt
            if (row.length - start) * _SIZE >= len(text):
                return row
            if ended is None or row.length > ended.length:
                ended = row  # right padding follows
    return ended


_WAITING = Kept(Waiting)


def find_waiting(model: Any) -> Waiting:
    """The image prompts of a model; they are dropped with the model."""
    return _WAITING.of(model)


def note_prompts(
    out: Any,
    model: Any,
    /,
    input_ids: Any,
    image_grid_thw: Any,
    video_grid_thw: Any,
    attention_mask: Any,
) -> Any:
    """The result of ``get_rope_index``; prompts with images or videos are queued."""
    waiting = _WAITING.of(model)
    waiting.note_text(input_ids, out[0])
    has_images = image_grid_thw is not None or video_grid_thw is not None
    # A host that computes positions itself passes them, or lets the model compute them again.
    if has_images and is_called_by_model():
        waiting.note(split_prompts(input_ids, out[0], attention_mask), out[0])
    return out


def is_called_by_model() -> bool:
    """Whether mlx-vlm computes positions, or the lab in its place, and not a host."""
    layers = ("mlx_patches.patches.", "mlx_patches.core.")
    caller = next((module for module, _ in callers() if not module.startswith(layers)), "")
    return caller.startswith(("mlx_vlm.", "mlx_patches."))


def split_prompts(ids: Any, positions: Any, mask: Any = None) -> list[ImagePrompt]:
    """Each row's prompt, from ids and mask (rows, length) and positions (3, rows, length).

    Returns an empty list if the positions have another shape.
    """
    if positions.shape != (3, *ids.shape):
        return []
    padding = [0] * ids.shape[0] if mask is None else mask.argmax(axis=-1).tolist()
    return [
        ImagePrompt(as_bytes(ids[row]), positions[:, row : row + 1], pad)
        for row, pad in enumerate(padding)
    ]


def as_bytes(ids: Any) -> bytes:
    """Token ids (length,) as the bytes of int32."""
    return bytes(memoryview(ids.astype(mx.int32)))


def follow_prompts(
    waiting: Waiting,
    held: Sequence[RowPrompt | None],
    starts: Sequence[int],
    ids: Any,
    deltas: Any = None,
) -> list[RowPrompt | None]:
    """The image prompt of which each row is fed a chunk, None for a row of text.

    Reads the tokens from the device.

    Args:
        held: the prompt that each row has been fed so far, or None.
        starts: where in its text each row's chunk begins; negative by the number of pad tokens
            still to be fed.
        ids: the token ids of the chunk, (rows, length).
        deltas: the rows' rope deltas so far, (rows, 1); None if unknown.
    """
    chunks = [as_bytes(ids[row, max(0, -start) :]) for row, start in enumerate(starts)]
    known = [None] * len(chunks) if deltas is None else deltas[:, 0].tolist()
    # Rows that began with the same tokens may hold each other's prompts: all are put back first.
    texts = []
    for row, start, chunk, delta in zip(held, starts, chunks, known, strict=True):
        begun = max(0, start)
        is_prompt = len(chunk) > _SIZE  # not a generated token
        text, place = chunk, begun
        if begun and not is_prompt:
            text = b""
        if row is not None and not row.fits(begun, chunk):
            text, place = row.tokens(row.since, begun) + chunk, row.since
            delta = row.delta(place).item() if place else None
            if start < row.length and is_prompt:
                waiting.give_back(row)
        texts.append((text, place, delta))
    return [
        row if row is not None and row.fits(max(0, start), chunk) else waiting.claim(*text)
        for row, start, chunk, text in zip(held, starts, chunks, texts, strict=True)
    ]
