"""The lab's scenarios: each runs rows in a batch and compares them with the same rows run alone.

A scenario takes a model and returns a cell. Rows are teacher-forced: each row has a fixed text,
whose start is fed as a prompt and whose rest is fed a token a step, so that one difference does
not change the text after it. The logits at each position must equal the logits of the same text
read alone, with the model's own cache.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..evidence.words import FLOAT32, GREEN, RED
from ..probes import NotApplicable
from . import Cell, LabModel, Said, engine, held, offline
from .compare import differences, ranked, spoken

# A prompt shorter than the window of a shrunk model, one longer, one in between.
LENGTHS = (4, 11, 6)
SHORT = (2, 5, 3)
# Decode steps that take the shortest prompt past the window of a shrunk model.
STEPS = 14
# Scenarios decode past windows of at most this many tokens; a larger one takes too long.
LARGEST = 64
# Lengths of second prompts, and a size of pieces such that the last piece of the longest of them
# has one token.
HISTORY = (5, 2, 9)
PIECE = 7
# A graph that grows by a node a step is larger in the second of two spans of steps. A graph
# that is cut regularly is not, if each span holds a cut: patches cut at every 32nd position.
CUT = 32
SPAN = CUT + 1
# The size of caches that rows of LENGTHS outgrow; larger than the first tokens that caches keep.
SMALL_CACHE = 12
# For each row: the turn at which it is inserted, how many tokens it generates, whether it has a
# logits processor. The first row leaves before the row with a processor is inserted; the last row
# is inserted while that row's prompt is read.
PROCESSED = ((0, 3, False), (0, 9, False), (5, 7, True), (6, 6, False))
# The same turns and counts, and whose sampler the row has: the generator's, or its own.
SAMPLED = ((0, 3, "default"), (0, 9, "default"), (5, 7, "second best"), (6, 6, "nucleus"))
# A sum of probabilities that the likeliest token alone exceeds.
NUCLEUS = 1e-3
# Rows of which the second leaves, and the last comes later: (turn, length, tokens, leaves).
LEAVERS = ((0, 4, 12, False), (0, 11, 3, True), (0, 6, 12, False), (8, 9, 6, False))
# The images in the prompts of the same rows, each (height, width) in patches, and their lengths.
SHOWN = ((6, ()), (11, ((2, 2),)), (17, ((2, 2), (3, 2))), (10, ((3, 2),)))

Scenario = Callable[[LabModel], Cell]
SCENARIOS: dict[str, Scenario] = {}


@dataclass
class Row:
    """One text, how many of its tokens have been fed, and the logits by position.

    ``image`` is the row's prompt if the prompt holds an image, else None. ``delta`` is the rope
    delta that the row decodes with.
    """

    text: tuple[int, ...]
    chunks: tuple[int, ...]
    fed: int = 0
    said: dict[int, Any] = field(default_factory=dict)
    image: engine.Image | None = None
    delta: int = 0

    def __post_init__(self) -> None:
        if self.image is not None:
            self.delta = self.image.delta

    def take(self, count: int) -> list[int]:
        """Return the next tokens and count them as fed."""
        self.fed += count
        return list(self.text[self.fed - count : self.fed])

    def hear(self, logits: Any) -> None:
        """Store the logits of the last token that was fed."""
        self.said[self.fed - 1] = logits


Run = Callable[[LabModel], Sequence[Row] | Cell]


def scenario(name: str) -> Callable[[Run], Scenario]:
    """Register a function that runs rows in some batch; its cell compares them with solo runs."""

    def register(run: Run) -> Scenario:
        @functools.wraps(run)
        def measure(model: LabModel) -> Cell:
            engine.forget(model)
            try:
                seen = run(model)
                return seen if isinstance(seen, Cell) else compare(model, seen)
            except NotApplicable as reason:
                return Cell("n/a", str(reason))
            except Exception as error:
                return Cell("red", engine.where(error))
            finally:
                engine.unmark()

        SCENARIOS[name] = measure
        return measure

    return register


@scenario("left-padded")
def left_padded(model: LabModel) -> Sequence[Row]:
    """Unequal prompts in one left-padded batch, decoded past the window."""
    rows = rows_of(model, LENGTHS)
    decode(model, rows, prefill_left(model, rows), steps(model))
    return rows


@scenario("right-padded")
def right_padded(model: LabModel) -> Sequence[Row]:
    """Unequal prompts, fed right-padded and then rolled to left padding."""
    rows = rows_of(model, LENGTHS)
    cache = engine.empty_batch(model, len(rows))
    prefill_right(model, rows, cache)
    decode(model, rows, cache, steps(model))
    return rows


@scenario("equal-lengths")
def equal_lengths(model: LabModel) -> Sequence[Row]:
    """A batch without padding."""
    rows = rows_of(model, [LENGTHS[-1]] * 3)
    decode(model, rows, prefill(model, rows), steps(model))
    return rows


@scenario("chunked-solo")
def chunked_solo(model: LabModel) -> Sequence[Row]:
    """One row alone, its prompt in pieces."""
    rows = rows_of(model, LENGTHS)
    for row in rows:
        cache = model.make_cache()
        engine.forget(model)
        for size in pieces(row.chunks[0], 4):
            feed(model, [row], cache, size)
        decode(model, [row], cache, 2)
    return rows


@scenario("chunked-batch")
def chunked_batch(model: LabModel) -> Sequence[Row]:
    """Unequal prompts in one batch, fed in pieces."""
    rows = rows_of(model, LENGTHS)
    decode(model, rows, prefill(model, rows, chunk=4), steps(model))
    return rows


@scenario("merge")
def merge(model: LabModel) -> Sequence[Row]:
    """Rows prefilled alone and then merged; also empty rows, if the engine merges those."""
    rows = rows_of(model, LENGTHS)
    cache = engine.merge(model, [prefill_alone(model, row) for row in rows])
    decode(model, rows, cache, steps(model))
    if not engine.merges_new_rows(model):
        return rows
    new = rows_of(model, LENGTHS)
    cache = engine.empty_batch(model, len(new))
    prefill_right(model, new, cache)
    decode(model, new, cache, steps(model))
    return [*rows, *new]


@scenario("extend")
def extend(model: LabModel) -> Sequence[Row]:
    """A row joins a batch that decodes: a shorter one, then one that is longer than the batch."""
    short, long, middle = rows_of(model, LENGTHS)
    cache = prefill(model, [short, long])
    decode(model, [short, long], cache, 3)
    cache = engine.extend(cache, prefill(model, [middle]))
    decode(model, [short, long, middle], cache, steps(model) - 3)

    rows = rows_of(model, LENGTHS)
    cache = prefill(model, [rows[0], rows[2]])
    decode(model, [rows[0], rows[2]], cache, 1)
    cache = engine.extend(cache, prefill(model, [rows[1]]))
    decode(model, [rows[0], rows[2], rows[1]], cache, steps(model) - 3)
    return [short, long, middle, *rows]


@scenario("filter")
def filter_(model: LabModel) -> Sequence[Row]:
    """The longest row leaves, later a second one."""
    rows = rows_of(model, LENGTHS)
    cache = prefill(model, rows)
    decode(model, rows, cache, 2)
    engine.keep(cache, [0, 2])
    left = [rows[0], rows[2]]
    decode(model, left, cache, steps(model) - 6)
    engine.keep(cache, [1])
    decode(model, left[1:], cache, 4)
    return rows


@scenario("extract-early")
def extract_early(model: LabModel) -> Sequence[Row]:
    """Each row is extracted before the window is full, and goes on alone."""
    return extracted(model, SHORT, 1, steps(model))


@scenario("extract-late")
def extract_late(model: LabModel) -> Sequence[Row]:
    """Each row is extracted after the window has wrapped, and goes on alone."""
    return extracted(model, LENGTHS, steps(model) - 6, 6)


@scenario("trim")
def trim(model: LabModel) -> Sequence[Row]:
    """The last two tokens of a batch are trimmed, and other tokens follow."""
    rows = rows_of(model, SHORT)
    cache = prefill(model, rows)
    strange = [Row(tuple(reversed(row.text)), row.chunks) for row in rows]
    decode(model, strange, cache, 2)
    engine.trim(cache, 2)
    decode(model, rows, cache, steps(model))
    return rows


@scenario("state")
def state(model: LabModel) -> Sequence[Row]:
    """A batch is saved and restored before the window is full, and again after it has wrapped."""
    rows = rows_of(model, SHORT)
    cache = prefill(model, rows)
    for count in (1, steps(model)):
        decode(model, rows, cache, count)
        cache = engine.restored(cache)
    decode(model, rows, cache, 2)
    return rows


@scenario("history")
def history(model: LabModel) -> Sequence[Row]:
    """Rows that each have a prompt cache get second, unequal prompts in one batch."""
    rows, cache = with_history(model)
    prefill_right(model, rows, cache)
    decode(model, rows, cache, steps(model) - 6)
    return rows


@scenario("last-piece")
def last_piece(model: LabModel) -> Sequence[Row]:
    """As history, but the right-padded prompts are fed in pieces; the last has one token."""
    rows, cache = with_history(model)
    prefill_right(model, rows, cache, PIECE)
    decode(model, rows, cache, 2)
    return rows


@scenario("rope-deltas")
def rope_deltas(model: LabModel) -> Sequence[Row]:
    """A row with an image and a row of text: one joins the other, or both start together."""
    rows = []
    for image_first in (False, True):
        # The rows have one length: other scenarios cover padding.
        joining, together = (text_and_image(model, image_first) for _ in range(2))
        cache, more = (prefill(model, [row]) for row in joining)
        decode(model, joining, engine.extend(cache, more), STEPS)
        engine.forget(model)
        decode(model, together, prefill(model, together), STEPS)
        rows += [*joining, *together]
    return rows


@scenario("images")
def images(model: LabModel) -> Sequence[Row]:
    """Two unequal rows with images in one batch; then an image and a text, fed in pieces."""
    together = [row_with_image(model, *size) for size in ((11, (2, 2)), (10, (3, 2)))]
    decode(model, together, prefill(model, together), STEPS)
    engine.forget(model)
    pieces = text_and_image(model, True)
    decode(model, pieces, prefill(model, pieces, chunk=4), STEPS)
    return [*together, *pieces]


def text_and_image(model: LabModel, image_first: bool) -> list[Row]:
    """A row of text and a row with an image in its prompt, of one length."""
    text = rows_of(model, [max(LENGTHS)])[0]
    image = row_with_image(model, max(LENGTHS), (2, 2))
    return [image, text] if image_first else [text, image]


def row_with_image(model: LabModel, length: int, *patches: tuple[int, int]) -> Row:
    """A row whose prompt has this length and images of (height, width) patches."""
    row = rows_of(model, [1, length])[1]
    image = engine.with_image(model, row.text[:length], *patches)
    return Row(image.tokens + row.text[length:], row.chunks, image=image)


@scenario("quantized-8")
def quantized_8(model: LabModel) -> Cell:
    """A left-padded batch with 8-bit keys and values, against solo rows with the same."""
    return quantized(model, 8)


@scenario("quantized-4")
def quantized_4(model: LabModel) -> Cell:
    """A left-padded batch with 4-bit keys and values, against solo rows with the same."""
    return quantized(model, 4)


@scenario("engine")
def engine_(model: LabModel) -> Cell:
    """The release's batch generator, with a row inserted late, against greedy solo generation."""
    rows = rows_of(model, LENGTHS)
    count = steps(model)
    first, second, late = (list(row.text[: row.chunks[0]]) for row in rows)
    said = engine.generate(model, [first, second], late, count)
    expected = [alone(model, prompt, count) for prompt in (first, second, late)]
    return spoken(said, expected, model.tolerance)


@scenario("processors")
def processors(model: LabModel) -> Cell:
    """Rows with a logits processor beside rows without, in the release's batch generator."""
    rows = rows_of(model, [LENGTHS[-1]] * len(PROCESSED))
    requests = [
        engine.Request(turn, row.text[: row.chunks[0]], count, [penalized] if processed else ())
        for row, (turn, count, processed) in zip(rows, PROCESSED, strict=True)
    ]
    said = engine.answered(model, requests)
    return heard(model, requests, said)


@scenario("samplers")
def samplers(model: LabModel) -> Cell:
    """Rows with a sampler of their own beside rows without, in the release's batch generator.

    A generator that takes no sampler of a row has the release's top_p for all rows.
    """
    nucleus = engine.nucleus(model, NUCLEUS)
    by_row = engine.samples_by_row(model)
    own = {"second best": second_best, "nucleus": nucleus} if by_row else {}
    rows = rows_of(model, [LENGTHS[-1]] * len(SAMPLED))
    requests = [
        engine.Request(turn, row.text[: row.chunks[0]], count, sampler=own.get(name))
        for row, (turn, count, name) in zip(rows, SAMPLED, strict=True)
    ]
    said = engine.answered(model, requests, **({} if by_row else {"sampler": nucleus}))
    return heard(model, requests, said)


@scenario("leaves")
def leaves(model: LabModel) -> Cell:
    """A row is removed from the release's batch generator, and another one comes afterwards."""
    rows = rows_of(model, [length for _, length, *_ in LEAVERS])
    requests = [
        engine.Request(turn, row.text[: row.chunks[0]], count, leaves=gone)
        for row, (turn, _, count, gone) in zip(rows, LEAVERS, strict=True)
    ]
    return heard(model, requests, engine.answered(model, requests))


@scenario("engine-images")
def engine_images(model: LabModel) -> Cell:
    """As leaves, with one image, two images or none in the prompts."""
    if model.family.distribution == "mlx-lm":
        raise NotApplicable("the release's batch generator takes no images")
    rows = [
        row_with_image(model, length, *patches) if patches else rows_of(model, [length])[0]
        for length, patches in SHOWN
    ]
    requests = [
        engine.Request(turn, row.text[: row.chunks[0]], count, image=row.image, leaves=gone)
        for row, (turn, _, count, gone) in zip(rows, LEAVERS, strict=True)
    ]
    return heard(model, requests, engine.answered(model, requests))


def heard(
    model: LabModel, requests: Sequence[engine.Request], said: Sequence[Sequence[Said]]
) -> Cell:
    """Compare what the release's generator said of requests with each of them alone."""
    ranks = [int(one.sampler is second_best) for one in requests]
    expected = [
        alone(model, list(one.prompt), one.count, one.processors or (), rank, one.image)
        for one, rank in zip(requests, ranks, strict=True)
    ]
    return spoken(said, expected, model.tolerance, ranks)


@scenario("growth")
def growth(model: LabModel) -> Cell:
    """The lazy graph left in the caches must not grow with each token that a batch decodes."""
    # A window that begins to slide in the second span would add nodes there alone.
    full = min(model.window or 0, LARGEST) + 1
    rows = rows_of(model, [max(CUT, full)] * 2)
    for row in rows:
        row.text *= 3
    cache = prefill(model, rows)
    sizes = []
    for step in range(2 * SPAN):
        if step == SPAN and engine.evaluates_caches(model):
            evaluate(cache)
        decode(model, rows, cache, 1)
        sizes.append(held.graph_size(cache))
    early, late = max(sizes[:SPAN]), max(sizes[SPAN:])
    said = f"{early} edges of the graph are left in {SPAN} steps, {late} in {2 * SPAN}"
    return Cell(RED if late > early else GREEN, said, float(late - early))


@scenario("cache-dtype")
def cache_dtype(model: LabModel) -> Cell:
    """A row that has not been fed joins a batch that has; the caches must keep their dtype."""
    if model.dtype == FLOAT32:
        raise NotApplicable("a cache of a float32 model cannot change to float32")
    if model.family.distribution != "mlx-lm":
        raise NotApplicable("the release's engine joins only batches that were fed")
    rows = rows_of(model, [LENGTHS[-1]] * 3)
    own = [held.float_types(layer) for layer in prefill_alone(model, rows_of(model, LENGTHS)[0])]
    cache, (first, second, new) = prefill(model, rows[:2]), rows
    cache = engine.extend(cache, engine.empty_batch(model, 1))
    decode(model, [first, second, new], cache, 1)
    for index, (layer, kinds) in enumerate(zip(cache, own, strict=True)):
        if other := held.float_types(layer) - kinds:
            said = f"layer {index}: {', '.join(sorted(other))} beside {', '.join(sorted(kinds))}"
            return Cell(RED, f"{said}, which it has alone")
    return Cell(GREEN, "each layer keeps the dtype that it has alone", 0.0)


@scenario("max-kv-size")
def max_kv_size(model: LabModel) -> Cell:
    """Rows that outgrow ``max_kv_size`` in the release's batch generator, against each row alone.

    Alone means what the release's ``stream_generate`` does: ``make_prompt_cache`` of that size.
    """
    limited = replace(model, make_cache=engine.limited_caches(model, SMALL_CACHE))
    rows = rows_of(model, LENGTHS)
    count = SMALL_CACHE + 2
    first, second, late = (list(row.text[: row.chunks[0]]) for row in rows)
    said = engine.generate(model, [first, second], late, count, max_kv_size=SMALL_CACHE)
    expected = [alone(limited, prompt, count) for prompt in (first, second, late)]
    return spoken(said, expected, model.tolerance)


@scenario("batch-generate")
def batch_generate(model: LabModel) -> Cell:
    """Unequal prompts in one call of the public batch_generate, against each prompt alone."""
    rows = rows_of(model, sorted(LENGTHS))
    prompts = [list(row.text[: row.chunks[0]]) for row in rows]
    if model.family.distribution != "mlx-lm":
        return offline_(model, prompts)
    count = steps(model)
    said = offline.batch_generate(model, prompts, count)
    return spoken(said, [alone(model, prompt, count) for prompt in prompts], model.tolerance)


@scenario("batch-generate-images")
def batch_generate_images(model: LabModel) -> Cell:
    """As batch-generate, with unequal prompts that each hold an image of one shape."""
    if model.family.distribution == "mlx-lm":
        raise NotApplicable("the release has no batch_generate with images")
    rows = [row_with_image(model, length, (2, 2)) for length in (9, 11, 14)]
    prompts = [list(row.text[: row.chunks[0]]) for row in rows]
    return offline_(model, prompts, rows[0].image)


def offline_(model: LabModel, prompts: list[list[int]], image: engine.Image | None = None) -> Cell:
    """Compare mlx-vlm's batch_generate of all prompts with batch_generate of each alone."""
    count, grid = steps(model), None if image is None else image.grid
    said = offline.batch_generate(model, prompts, count, grid)
    own = [offline.batch_generate(model, [prompt], count, grid)[0] for prompt in prompts]
    return spoken(said, [[one.every for one in row] for row in own], model.tolerance)


def quantized(model: LabModel, bits: int) -> Cell:
    """A left-padded batch with quantized keys and values, against solo rows with the same."""
    rows = rows_of(model, LENGTHS)
    cache, makers = engine.quantized(model, padding_of(rows), bits)
    try:
        alone = [_solo_run(model, row, [make() for make in makers]) for row in rows]
    except Exception as error:
        raise NotApplicable(f"not even alone: {engine.where(error)}") from error
    decode(model, rows, prefill_left(model, rows, cache=cache), steps(model))
    return differences([row.said for row in rows], alone, model.tolerance.quantized())


def with_history(model: LabModel) -> tuple[list[Row], list[Any]]:
    """Rows whose first prompts were fed alone, and their merged caches."""
    rows = rows_of(model, LENGTHS, more=HISTORY)
    caches = [prefill_alone(model, row) for row in rows]
    return rows, engine.merge(model, caches)


def extracted(model: LabModel, lengths: Sequence[int], together: int, alone: int) -> Sequence[Row]:
    """Rows that decode in a batch, then each also alone from its extracted cache."""
    rows = rows_of(model, lengths)
    cache = prefill(model, rows)
    decode(model, rows, cache, together)
    leavers = [Row(row.text, row.chunks, row.fed) for row in rows]
    caches = [engine.extract(cache, index) for index in range(len(rows))]
    for leaver, own in zip(leavers, caches, strict=True):
        decode(model, [leaver], own, alone)
    decode(model, rows, cache, 2)
    return [*rows, *leavers]


def steps(model: LabModel) -> int:
    """The number of decode steps that take the shortest prompt well past the window."""
    return max(STEPS, min(model.window or 0, LARGEST) + 6)


def rows_of(
    model: LabModel, lengths: Sequence[int], more: Sequence[int] | None = None
) -> list[Row]:
    """Rows with prompts of these lengths; ``more``: lengths of second prompts after the first."""
    # One length that is enough for every scenario, so that scenarios share solo runs.
    total = max(LENGTHS) + steps(model) + 10
    rows = []
    for index, length in enumerate(lengths):
        draw = random.Random(index)
        text = tuple(draw.randrange(1, model.vocabulary) for _ in range(total))
        rows.append(Row(text, (length, more[index]) if more else (length,)))
    return rows


def feed(model: LabModel, rows: Sequence[Row], cache: list[Any], count: int) -> None:
    """Feed the next ``count`` tokens of each row in one call."""
    places = [range(row.fed, row.fed + count) for row in rows] if count > 1 else None
    new = rows[0].fed == 0
    said = _call(model, rows, [row.take(count) for row in rows], cache, places, new)
    hear(rows, said)


def hear(rows: Sequence[Row], said: Any) -> None:
    """Store the logits of each row's last token."""
    for index, row in enumerate(rows):
        row.hear(said[index, -1])


def decode(model: LabModel, rows: Sequence[Row], cache: list[Any], count: int) -> None:
    """Feed each row one token a step, for ``count`` steps."""
    for _ in range(count):
        feed(model, rows, cache, 1)


def prefill(model: LabModel, rows: Sequence[Row], chunk: int = 0) -> list[Any]:
    """Feed the prompts as one batch, padded as the release's engine pads; returns the cache."""
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
    said = _feed_table(model, rows, table, cache, places, chunk)
    if settles:
        engine.settle(cache)
        feed(model, rows, cache, 1)
    else:
        hear(rows, said)
    return cache


def prefill_alone(model: LabModel, row: Row) -> list[Any]:
    """Feed a row's prompt with the model's own cache; returns the cache."""
    cache = model.make_cache()
    engine.forget(model)
    feed(model, [row], cache, row.chunks[0])
    return cache


def prefill_right(model: LabModel, rows: Sequence[Row], cache: list[Any], chunk: int = 0) -> None:
    """Feed the prompts right-padded without their last tokens, then those in one step."""
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
    """The left padding of each row's prompt, in tokens."""
    longest = max(row.chunks[0] for row in rows)
    return [longest - row.chunks[0] for row in rows]


def pieces(length: int, size: int) -> list[int]:
    """The sizes of the pieces in which a prompt is fed."""
    return [min(size, length - start) for start in range(0, length, size)]


def compare(model: LabModel, rows: Sequence[Row]) -> Cell:
    """Compare the rows' logits in the batch with their logits alone."""
    said = [row.said for row in rows]
    return differences(said, [solo(model, row) for row in rows], model.tolerance)


def alone(
    model: LabModel,
    prompt: list[int],
    count: int,
    processors: Sequence[engine.Processor] = (),
    rank: int = 0,
    image: engine.Image | None = None,
) -> list[Any]:
    """The processed logits of each token that the model generates from one prompt.

    ``rank``: which token it takes, 0 for the likeliest. ``image``: the prompt, if it holds one.
    """
    import mlx.core as mx

    row = Row(tuple(prompt), (len(prompt),), image=image)
    cache = prefill_alone(model, row)
    said: list[Any] = []
    while True:
        logits = row.said[row.fed - 1]
        for process in processors:
            logits = process(mx.array(row.text), logits[None])[0]
        said.append(logits)
        if len(said) == count:
            return said
        row.text += (ranked(logits, rank),)
        feed(model, [row], cache, 1)


def penalized(tokens: Any, logits: Any) -> Any:
    """A logits processor that keeps every earlier token from being the likeliest.

    Args:
        tokens: the row's token ids so far, of shape (length,).
        logits: of shape (1, vocabulary).
    """
    import mlx.core as mx

    seen = mx.zeros(logits.shape[-1]).at[mx.array(tokens)].add(1) > 0
    return mx.where(seen, logits - mx.abs(logits).max(), logits)


def second_best(logprobs: Any) -> Any:
    """A sampler that takes the second likeliest token: (rows, vocabulary) to (rows,)."""
    import mlx.core as mx

    return mx.argsort(logprobs, axis=-1)[..., -2]


def evaluate(cache: list[Any]) -> None:
    """Evaluate the state of every layer, as an engine does."""
    import mlx.core as mx

    mx.eval([layer.state for layer in cache])


_solo: dict[tuple[int, tuple[int, ...], tuple[int, ...], bool], dict[int, Any]] = {}
_kept: dict[int, LabModel] = {}


def forget_solo_runs() -> None:
    """Drop the stored solo runs; to be called when a patch came or went."""
    _solo.clear()


def solo(model: LabModel, row: Row) -> dict[int, Any]:
    """The logits by position of a row's text read alone; each text is run once."""
    _kept[id(model)] = model  # keeps its id from being reused
    key = (id(model), row.text, row.chunks, row.image is not None)
    if key not in _solo:
        _solo[key] = _solo_run(model, row, model.make_cache())
    return _solo[key]


def _solo_run(model: LabModel, row: Row, cache: list[Any]) -> dict[int, Any]:
    row = Row(row.text, row.chunks, image=row.image)
    engine.forget(model)
    for count in row.chunks:
        feed(model, [row], cache, count)
    decode(model, [row], cache, len(row.text) - row.fed)
    return row.said


def _feed_table(
    model: LabModel,
    rows: Sequence[Row],
    table: Sequence[Sequence[int]],
    cache: list[Any],
    places: Sequence[Sequence[int]],
    chunk: int,
) -> Any:
    """Feed padded prompts, in pieces if ``chunk`` is not 0; returns the last piece's logits."""
    said, start = None, 0
    for size in pieces(len(table[0]), chunk or len(table[0])):
        part = slice(start, start + size)
        tokens, at = [line[part] for line in table], [line[part] for line in places]
        said = _call(model, rows, tokens, cache, at, new=start == 0)
        start += size
    return said


def _call(
    model: LabModel,
    rows: Sequence[Row],
    table: Sequence[Sequence[int]],
    cache: list[Any],
    places: Sequence[Sequence[int]] | None,
    new: bool,
) -> Any:
    """The logits of a table of tokens, of shape (rows, length, vocabulary).

    Args:
        model: the model to call.
        rows: the rows of the batch.
        table: token ids, a list for each row.
        cache: the caches of the batch.
        places: each prompt token's position in its row's text; None for a decode step.
        new: whether the call feeds the start of the prompts.
    """
    import mlx.core as mx

    deltas = [row.delta for row in rows]
    images = [row.image for row in rows]
    kwargs = engine.position_kwargs(model, deltas, places, new, images)
    said = model.call(mx.array(table), cache, **kwargs)
    mx.eval(said)
    if places is not None:
        for row, delta in zip(rows, engine.captured_deltas(model, deltas), strict=True):
            row.delta = delta
    return said
