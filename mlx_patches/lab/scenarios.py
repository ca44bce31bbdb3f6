"""The lab's scenarios: each runs rows in a batch and compares them with solo runs.

A scenario takes a model and returns a cell. Rows are teacher-forced: each row has a fixed text.
Its start is fed as a prompt and the rest one token per step, so that one difference does not change
the text after it. The logits at each position must equal those of a solo run of the same text with
the model's own cache. ``engine_scenarios`` has the scenarios of the release's engine, which
samples the tokens itself.
"""

import functools
from collections.abc import Sequence
from typing import Any

from ..core.arrays import mx
from ..evidence.results import NotApplicable
from ..evidence.words import FLOAT32, GREEN, RED, scenario_order
from . import (
    Cell,
    LabModel,
    cache_arrays,
    engine,
    engine_scenarios,  # noqa: F401  registers its scenarios
    generators,
)
from .compare import differences
from .registry import REGISTERED, Scenario, scenario
from .rows import (
    LARGEST,
    LENGTHS,
    STEPS,
    Row,
    chunk_sizes,
    decode,
    feed,
    forget_solo_runs,
    padding_of,
    prefill,
    prefill_left,
    prefill_right,
    prefill_solo,
    row_with_image,
    rows_of,
    solo_run,
    steps,
    text_and_image,
)

__all__ = ["SCENARIOS", "forget_solo_runs"]

SHORT = (2, 5, 3)
# The lengths of second prompts, and a chunk size at which the last chunk of the longest one is one
# token.
HISTORY = (5, 2, 9)
CHUNK = 7
# A graph that leaks one node per step is larger in the second of two spans of steps. A graph that
# is cut regularly is not, if each span contains a cut: patches cut at every 32nd position.
CUT = 32
SPAN = CUT + 1


@scenario("left-padded")
def run_left_padded(model: LabModel) -> Sequence[Row]:
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
def run_chunked_solo(model: LabModel) -> Sequence[Row]:
    """A single row with chunked prefill."""
    rows = rows_of(model, LENGTHS)
    for row in rows:
        cache = model.make_cache()
        engine.forget(model)
        for size in chunk_sizes(row.chunks[0], 4):
            feed(model, [row], cache, size)
        decode(model, [row], cache, 2)
    return rows


@scenario("chunked-batch")
def run_chunked_batch(model: LabModel) -> Sequence[Row]:
    """Unequal prompts in one batch with chunked prefill."""
    rows = rows_of(model, LENGTHS)
    decode(model, rows, prefill(model, rows, chunk=4), steps(model))
    return rows


@scenario("merge")
def merge(model: LabModel) -> Sequence[Row]:
    """Solo-prefilled rows are merged; also empty rows, if the engine merges those."""
    rows = rows_of(model, LENGTHS)
    cache = engine.merge(model, [prefill_solo(model, row) for row in rows])
    decode(model, rows, cache, steps(model))
    if not engine.merges_new_rows(model):
        return rows
    new = rows_of(model, LENGTHS)
    decode(model, new, prefill(model, new), steps(model))
    return [*rows, *new]


@scenario("extend")
def extend(model: LabModel) -> Sequence[Row]:
    """Rows join a decoding batch: first a shorter one, then one longer than the batch."""
    seen = []
    for joins, count in ((2, 3), (1, 1)):
        rows = rows_of(model, LENGTHS)
        first = [row for row in rows if row is not rows[joins]]
        cache = prefill(model, first)
        decode(model, first, cache, count)
        cache = engine.extend(cache, prefill(model, [rows[joins]]))
        decode(model, [*first, rows[joins]], cache, steps(model) - 3)
        seen += rows
    return seen


@scenario("filter")
def filter_(model: LabModel) -> Sequence[Row]:
    """The longest row leaves the batch, later a second one."""
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
    """Each row is extracted before the window is full and continues solo."""
    return run_extracted(model, SHORT, 1, steps(model))


@scenario("extract-late")
def extract_late(model: LabModel) -> Sequence[Row]:
    """Each row is extracted after the window has wrapped and continues solo."""
    return run_extracted(model, LENGTHS, steps(model) - 6, 6)


@scenario("trim")
def trim(model: LabModel) -> Sequence[Row]:
    """The last two tokens of a batch are trimmed and replaced by others."""
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
        cache = engine.restore_copies(cache)
    decode(model, rows, cache, 2)
    return rows


@scenario("history")
def history(model: LabModel) -> Sequence[Row]:
    """Rows with prompt caches get unequal second prompts in one batch."""
    rows, cache = with_history(model)
    prefill_right(model, rows, cache)
    decode(model, rows, cache, steps(model) - 6)
    return rows


@scenario("last-chunk")
def last_chunk(model: LabModel) -> Sequence[Row]:
    """Like history, with right-padded prompts in chunks; the last chunk is one token."""
    rows, cache = with_history(model)
    prefill_right(model, rows, cache, CHUNK)
    decode(model, rows, cache, 2)
    return rows


@scenario("rope-deltas")
def rope_deltas(model: LabModel) -> Sequence[Row]:
    """An image row and a text row: one joins the other, or both start together."""
    rows = []
    for image_first in (False, True):
        # Equal lengths: other scenarios cover padding.
        joining, together = (text_and_image(model, image_first) for _ in range(2))
        cache, more = (prefill(model, [row]) for row in joining)
        decode(model, joining, engine.extend(cache, more), STEPS)
        engine.forget(model)
        decode(model, together, prefill(model, together), STEPS)
        rows += [*joining, *together]
    return rows


@scenario("images")
def images(model: LabModel) -> Sequence[Row]:
    """Two unequal image rows in one batch; then an image and a text with chunked prefill."""
    together = [row_with_image(model, *size) for size in ((11, (2, 2)), (10, (3, 2)))]
    decode(model, together, prefill(model, together), STEPS)
    engine.forget(model)
    chunked = text_and_image(model, True)
    decode(model, chunked, prefill(model, chunked, chunk=4), STEPS)
    return [*together, *chunked]


@scenario("growth")
def growth(model: LabModel) -> Cell:
    """The lazy graph left in the caches must not grow with each token that a batch decodes."""
    # A window that begins to slide only in the second span would add nodes there.
    full = min(model.window or 0, LARGEST) + 1
    rows = rows_of(model, [max(CUT, full)] * 2)
    for row in rows:
        row.text *= 3
    cache = prefill(model, rows)
    sizes = []
    for step in range(2 * SPAN):
        if step == SPAN and engine.evaluates_caches(model):
            mx.eval([layer.state for layer in cache])
        decode(model, rows, cache, 1)
        sizes.append(cache_arrays.count_edges(*cache_arrays.arrays(cache)))
    early, late = max(sizes[:SPAN]), max(sizes[SPAN:])
    detail = f"{early} edges of the graph are left in {SPAN} steps, {late} in {2 * SPAN}"
    return Cell(RED if late > early else GREEN, detail, float(late - early))


@scenario("cache-dtype")
def cache_dtype(model: LabModel) -> Cell:
    """An unfed row joins a batch that has been fed; the caches must keep their dtype."""
    if model.dtype == FLOAT32:
        raise NotApplicable("a cache of a float32 model cannot change to float32")
    if model.family.distribution != "mlx-lm":
        raise NotApplicable("the release's engine joins only batches that were fed")
    rows = rows_of(model, [LENGTHS[-1]] * 3)
    own = [
        cache_arrays.float_types(layer) for layer in prefill_solo(model, rows_of(model, LENGTHS)[0])
    ]
    cache, (first, second, new) = prefill(model, rows[:2]), rows
    cache = engine.extend(cache, engine.empty_batch(model, 1))
    decode(model, [first, second, new], cache, 1)
    for index, (layer, kinds) in enumerate(zip(cache, own, strict=True)):
        if other := cache_arrays.float_types(layer) - kinds:
            types, own_types = (", ".join(sorted(one)) for one in (other, kinds))
            return Cell(RED, f"layer {index}: {types} instead of {own_types} in a solo run")
    return Cell(GREEN, "each layer keeps the dtype of a solo run", 0.0)


def run_quantized(model: LabModel, bits: int) -> Cell:
    """A left-padded batch with quantized keys and values, against solo runs with the same."""
    rows = rows_of(model, LENGTHS)
    cache, makers = engine.quantize_caches(model, padding_of(rows), bits)
    if generators.refuses_bits(model, bits):
        raise NotApplicable("the engine ignores kv_bits for this model, with a warning")
    try:
        solo = [solo_run(model, row, [make() for make in makers]) for row in rows]
    except Exception as error:
        raise NotApplicable(f"not even in a solo run: {engine.where(error)}") from error
    decode(model, rows, prefill_left(model, rows, cache=cache), steps(model))
    return differences([row.logits for row in rows], solo, model.tolerance.for_quantized())


for _bits in (8, 4):
    scenario(f"quantized-{_bits}")(functools.partial(run_quantized, bits=_bits))


def with_history(model: LabModel) -> tuple[list[Row], list[Any]]:
    rows = rows_of(model, LENGTHS, more=HISTORY)
    caches = [prefill_solo(model, row) for row in rows]
    return rows, engine.merge(model, caches)


def run_extracted(
    model: LabModel, lengths: Sequence[int], together: int, solo: int
) -> Sequence[Row]:
    """Rows that decode in a batch, then each continues solo from its extracted cache."""
    rows = rows_of(model, lengths)
    cache = prefill(model, rows)
    decode(model, rows, cache, together)
    leavers = [Row(row.text, row.chunks, row.fed) for row in rows]
    caches = [engine.extract(cache, index) for index in range(len(rows))]
    for leaver, own in zip(leavers, caches, strict=True):
        decode(model, [leaver], own, solo)
    decode(model, rows, cache, 2)
    return [*rows, *leavers]


SCENARIOS: dict[str, Scenario] = dict(
    sorted(REGISTERED.items(), key=lambda item: scenario_order(item[0]))
)
