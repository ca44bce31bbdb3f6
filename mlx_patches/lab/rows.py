"""The rows of a batch: how scenarios feed them, and the logits of their solo runs."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.arrays import mx
from . import Cell, LabModel, engine, generators
from .compare import differences, pick_rank

# Prompts that are shorter than a shrunk model's window, longer, and in between.
LENGTHS = (4, 11, 6)
# Decode steps that take the shortest prompt past a shrunk model's window.
STEPS = 14
# Scenarios decode past windows of at most this many tokens; larger ones take too long.
LARGEST = 64


# A line of tokens, or of their positions, for each row.
Table = Sequence[Sequence[int]]


@dataclass
class Row:
    """A text, how many of its tokens have been fed, and the logits by position.

    ``image`` is the row's prompt if it holds an image, else None. ``delta`` is the rope delta that
    the row decodes with.
    """

    text: tuple[int, ...]
    chunks: tuple[int, ...]
    fed: int = 0
    logits: dict[int, Any] = field(default_factory=dict)
    image: engine.Image | None = None
    delta: int = 0

    def __post_init__(self) -> None:
        if self.image is not None:
            self.delta = self.image.delta

    @property
    def prompt(self) -> list[int]:
        return list(self.text[: self.chunks[0]])

    def take(self, count: int) -> list[int]:
        self.fed += count
        return list(self.text[self.fed - count : self.fed])

    def record(self, logits: Any) -> None:
        self.logits[self.fed - 1] = logits


def text_and_image(model: LabModel, image_first: bool) -> list[Row]:
    text = rows_of(model, [max(LENGTHS)])[0]
    image = row_with_image(model, max(LENGTHS), (2, 2))
    return [image, text] if image_first else [text, image]


def row_with_image(model: LabModel, length: int, *patches: tuple[int, int]) -> Row:
    """A row whose prompt has this length and images of (height, width) patches."""
    row = rows_of(model, [1, length])[1]
    image = engine.with_image(model, row.text[:length], *patches)
    return Row(image.tokens + row.text[length:], row.chunks, image=image)


def steps(model: LabModel) -> int:
    """The number of decode steps that take the shortest prompt well past the window."""
    return max(STEPS, min(model.window or 0, LARGEST) + 6)


def rows_of(
    model: LabModel, lengths: Sequence[int], more: Sequence[int] | None = None
) -> list[Row]:
    """Rows with prompts of these lengths; ``more``: lengths of their second prompts."""
    # One text length that suffices for every scenario, so that scenarios share solo runs.
    total = max(LENGTHS) + steps(model) + 10
    rows = []
    for index, length in enumerate(lengths):
        draw = random.Random(index)
        text = tuple(draw.randrange(1, model.vocabulary) for _ in range(total))
        rows.append(Row(text, (length, more[index]) if more else (length,)))
    return rows


def feed(model: LabModel, rows: Sequence[Row], cache: list[Any], count: int) -> None:
    places = [range(row.fed, row.fed + count) for row in rows] if count > 1 else None
    new = rows[0].fed == 0
    logits = _call(model, rows, [row.take(count) for row in rows], cache, places, new)
    record_logits(rows, logits)


def record_logits(rows: Sequence[Row], logits: Any) -> None:
    for index, row in enumerate(rows):
        row.record(logits[index, -1])


def decode(model: LabModel, rows: Sequence[Row], cache: list[Any], count: int) -> None:
    for _ in range(count):
        feed(model, rows, cache, 1)


def prefill(model: LabModel, rows: Sequence[Row], chunk: int = 0) -> list[Any]:
    """Feed the prompts as one batch, padded like the release's engine does; returns the cache."""
    if not engine.merges_new_rows(model):
        return prefill_left(model, rows, chunk)
    cache = engine.empty_batch(model, len(rows))
    prefill_right(model, rows, cache, chunk)
    return cache


def prefill_left(
    model: LabModel, rows: Sequence[Row], chunk: int = 0, cache: list[Any] | None = None
) -> list[Any]:
    """Feed the rows' prompts as one left-padded batch; returns the cache."""
    padding = padding_of(rows)
    if cache is None:
        cache = engine.batch_cache(model, padding)
    settles = engine.settles(model)
    table, places = [], []
    for pad, row in zip(padding, rows, strict=True):
        count = row.chunks[0] - settles
        places.append([0] * pad + list(range(count)))
        table.append([0] * pad + row.take(count))
    logits = _feed_table(model, rows, table, cache, places, chunk)
    if settles:
        engine.settle(cache)
        feed(model, rows, cache, 1)
    else:
        record_logits(rows, logits)
    return cache


def prefill_solo(model: LabModel, row: Row) -> list[Any]:
    cache = model.make_cache()
    engine.forget(model)
    feed(model, [row], cache, row.chunks[0])
    return cache


def prefill_right(model: LabModel, rows: Sequence[Row], cache: list[Any], chunk: int = 0) -> None:
    """Feed the prompts right-padded except their last tokens, then those in one step."""
    lengths = [row.chunks[-1] - 1 for row in rows]
    longest = max(lengths)
    padded = min(lengths) < longest
    if padded:
        engine.prepare(cache, lengths)
    places = [range(row.fed, row.fed + longest) for row in rows]
    table = [
        row.take(length) + [0] * (longest - length)
        for row, length in zip(rows, lengths, strict=True)
    ]
    _feed_table(model, rows, table, cache, places, chunk)
    if padded:
        engine.finalize(cache)
    feed(model, rows, cache, 1)


def padding_of(rows: Sequence[Row]) -> list[int]:
    longest = max(row.chunks[0] for row in rows)
    return [longest - row.chunks[0] for row in rows]


def chunk_sizes(length: int, size: int) -> list[int]:
    return [min(size, length - start) for start in range(0, length, size)]


def compare(model: LabModel, rows: Sequence[Row]) -> Cell:
    logits = [row.logits for row in rows]
    return differences(logits, [solo(model, row) for row in rows], model.tolerance)


def generate_solo(
    model: LabModel,
    prompt: list[int],
    count: int,
    processors: Sequence[generators.Processor] = (),
    rank: int = 0,
    image: engine.Image | None = None,
) -> list[Any]:
    """The processed logits of each token that the model generates for a single prompt.

    ``rank``: which token is chosen, 0 for the likeliest. ``image``: the prompt, if it holds one.
    """
    row = Row(tuple(prompt), (len(prompt),), image=image)
    cache = prefill_solo(model, row)
    generated: list[Any] = []
    while True:
        logits = row.logits[row.fed - 1]
        for process in processors:
            logits = process(mx.array(row.text), logits[None])[0]
        generated.append(logits)
        if len(generated) == count:
            return generated
        row.text += (pick_rank(logits, rank),)
        feed(model, [row], cache, 1)


_solo: dict[tuple[LabModel, tuple[int, ...], tuple[int, ...], bool], dict[int, Any]] = {}


def forget_solo_runs() -> None:
    """Drop the stored solo runs; call it after applying or removing a patch."""
    _solo.clear()


def solo(model: LabModel, row: Row) -> dict[int, Any]:
    """The logits by position of a row's solo run, up to the tokens that were fed.

    For a row that has not been fed, the whole text. A text is run once; a second time, to its
    end, if a later row needs more of it.
    """
    key = (model, row.text, row.chunks, row.image is not None)
    known = _solo.get(key)
    end = row.fed or len(row.text)
    if known is None or max(known) < end - 1:
        known = solo_run(model, row, model.make_cache(), len(row.text) if known else end)
        _solo[key] = known
    return known


def solo_run(model: LabModel, row: Row, cache: list[Any], end: int | None = None) -> dict[int, Any]:
    """The logits by position of a solo run of a row's first ``end`` tokens, with this cache."""
    row = Row(row.text, row.chunks, image=row.image)
    engine.forget(model)
    for count in row.chunks:
        feed(model, [row], cache, count)
    decode(model, [row], cache, (len(row.text) if end is None else end) - row.fed)
    return row.logits


def _feed_table(
    model: LabModel, rows: Sequence[Row], table: Table, cache: list[Any], places: Table, chunk: int
) -> Any:
    """Feed padded prompts, chunked if ``chunk`` is not 0; returns the last chunk's logits."""
    logits, start = None, 0
    for size in chunk_sizes(len(table[0]), chunk or len(table[0])):
        part = slice(start, start + size)
        tokens, at = [line[part] for line in table], [line[part] for line in places]
        logits = _call(model, rows, tokens, cache, at, new=start == 0)
        start += size
    return logits


def _call(
    model: LabModel,
    rows: Sequence[Row],
    table: Table,
    cache: list[Any],
    places: Table | None,
    new: bool,
) -> Any:
    """Logits (rows, length, vocabulary); for ``places`` see ``engine.position_kwargs``."""
    deltas = [row.delta for row in rows]
    images = [row.image for row in rows]
    kwargs = engine.position_kwargs(model, deltas, places, new, images)
    logits = model.call(mx.array(table), cache, **kwargs)
    mx.eval(logits)
    if places is not None:
        for row, delta in zip(rows, engine.capture_deltas(model, deltas), strict=True):
            row.delta = delta
    return logits
