"""Scenarios of the release's engine: its batch generator and ``batch_generate``.

Each compares the rows of a batch with their solo runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core.arrays import mx
from ..evidence.results import NotApplicable
from . import Cell, Generated, LabModel, engine, generators, offline
from .compare import compare_generated
from .registry import scenario
from .rows import LENGTHS, Row, generate_solo, row_with_image, rows_of, steps

# A cache size that rows of LENGTHS outgrow, larger than the number of first tokens kept.
SMALL_CACHE = 12
# Per row: the turn of its insertion and the number of tokens it generates. The first row leaves
# before the third, which has a custom processor or sampler, is inserted; the last row is inserted
# during the third's prefill.
TURNS = ((0, 3), (0, 9), (5, 7), (6, 6))
# Per row: (turn, tokens, leaves). The second row leaves, and the last is inserted later.
LEAVERS = ((0, 12, False), (0, 3, True), (0, 12, False), (8, 6, False))
# Per row of LEAVERS: the prompt length, and its images as (height, width) in patches.
SHOWN = ((6, ()), (11, ((2, 2),)), (17, ((2, 2), (3, 2))), (10, ((3, 2),)))


@scenario("engine")
def engine_(model: LabModel) -> Cell:
    return run_joined(model, model, steps(model))


@scenario("processors")
def processors(model: LabModel) -> Cell:
    """Batch rows with and without a logits processor in the batch generator."""
    requests = insert_rows(model, "processors", [(), (), [penalize], ()])
    return compare_with_solo(model, requests, generators.run_requests(model, requests))


@scenario("samplers")
def samplers(model: LabModel) -> Cell:
    """Batch rows with and without a custom sampler in the batch generator.

    If the generator does not accept samplers per row, all rows use the release's top_p.
    """
    nucleus = generators.nucleus(model, 1e-3)  # only the likeliest token remains
    by_row = generators.samples_by_row(model)
    own = [second_best, nucleus] if by_row else [None, None]
    requests = insert_rows(model, "sampler", [None, None, *own])
    output = generators.run_requests(model, requests, **({} if by_row else {"sampler": nucleus}))
    return compare_with_solo(
        model, requests, output, [int(one.sampler is second_best) for one in requests]
    )


@scenario("leaves")
def leaves(model: LabModel) -> Cell:
    """Remove a row from the batch generator, then insert another."""
    return run_leavers(model, rows_of(model, (4, 11, 6, 9)))


@scenario("engine-images")
def engine_images(model: LabModel) -> Cell:
    """Repeat ``leaves`` with one image, two images or none in the prompts."""
    if model.family.distribution == "mlx-lm":
        raise NotApplicable("the release's batch generator takes no images")
    rows = [
        row_with_image(model, length, *patches) if patches else rows_of(model, [length])[0]
        for length, patches in SHOWN
    ]
    return run_leavers(model, rows)


@scenario("max-kv-size")
def max_kv_size(model: LabModel) -> Cell:
    """Compare rows that outgrow ``max_kv_size`` in the batch generator with their solo runs.

    A solo run uses ``make_prompt_cache`` with that size, like the release's ``stream_generate``.
    """
    limited = replace(model, make_cache=generators.limit_caches(model, SMALL_CACHE))
    return run_joined(model, limited, SMALL_CACHE + 2, max_kv_size=SMALL_CACHE)


@scenario("batch-generate")
def batch_generate(model: LabModel) -> Cell:
    """Compare prompts of unequal length in one ``batch_generate`` call with their solo runs."""
    prompts = [row.prompt for row in rows_of(model, sorted(LENGTHS))]
    if model.family.distribution != "mlx-lm":
        return offline_(model, prompts)
    count = steps(model)
    output = offline.batch_generate(model, prompts, count)
    return compare_generated(
        output, [generate_solo(model, prompt, count) for prompt in prompts], model.tolerance
    )


@scenario("batch-generate-images")
def batch_generate_images(model: LabModel) -> Cell:
    """Repeat ``batch-generate`` with one image per prompt, all of the same shape."""
    if model.family.distribution == "mlx-lm":
        raise NotApplicable("the release has no batch_generate with images")
    rows = [row_with_image(model, length, (2, 2)) for length in (9, 11, 14)]
    return offline_(model, [row.prompt for row in rows], rows[0].image)


def run_joined(model: LabModel, single: LabModel, count: int, **options: Any) -> Cell:
    """Compare a batch with one late row with solo runs on the model ``single``."""
    *first, late = (row.prompt for row in rows_of(model, LENGTHS))
    output = generators.generate(model, first, late, count, **options)
    expected = [generate_solo(single, prompt, count) for prompt in (*first, late)]
    return compare_generated(output, expected, model.tolerance)


def insert_rows(model: LabModel, name: str, values: Sequence[Any]) -> list[generators.Request]:
    """Rows of equal length inserted at TURNS, each with its value of the field ``name``."""
    rows = rows_of(model, [LENGTHS[-1]] * len(TURNS))
    return [
        generators.Request(turn, row.prompt, count, **{name: value})
        for row, (turn, count), value in zip(rows, TURNS, values, strict=True)
    ]


def run_leavers(model: LabModel, rows: Sequence[Row]) -> Cell:
    """Compare rows that are inserted and removed according to LEAVERS with their solo runs."""
    requests = [
        generators.Request(turn, row.prompt, count, image=row.image, leaves=gone)
        for row, (turn, count, gone) in zip(rows, LEAVERS, strict=True)
    ]
    return compare_with_solo(model, requests, generators.run_requests(model, requests))


def compare_with_solo(
    model: LabModel,
    requests: Sequence[generators.Request],
    output: Sequence[Sequence[Generated]],
    ranks: Sequence[int] = (),
) -> Cell:
    """Compare requests with solo runs; ``ranks``: see ``compare_generated``."""
    expected = [
        generate_solo(model, list(one.prompt), one.count, one.processors or (), rank, one.image)
        for one, rank in zip(requests, ranks or [0] * len(requests), strict=True)
    ]
    return compare_generated(output, expected, model.tolerance, ranks)


def offline_(model: LabModel, prompts: list[list[int]], image: engine.Image | None = None) -> Cell:
    """Compare mlx-vlm's ``batch_generate`` of all prompts with a separate call per prompt."""
    count, grid = steps(model), None if image is None else image.grid
    output = offline.batch_generate(model, prompts, count, grid)
    own = [offline.batch_generate(model, [prompt], count, grid)[0] for prompt in prompts]
    return compare_generated(output, [[one.every for one in row] for row in own], model.tolerance)


def penalize(tokens: Any, logits: Any) -> Any:
    """A logits processor that penalizes every earlier token of a row."""
    seen = mx.zeros(logits.shape[-1]).at[mx.array(tokens)].add(1) > 0
    return mx.where(seen, logits - mx.abs(logits).max(), logits)


def second_best(logprobs: Any) -> Any:
    """A sampler that takes the second likeliest token: (rows, vocabulary) to (rows,)."""
    return mx.argsort(logprobs, axis=-1)[..., -2]
