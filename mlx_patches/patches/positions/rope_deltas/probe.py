"""Decodes rows with different positions: merged texts, and rows with images."""

import inspect
from collections.abc import Iterator
from typing import Any

from ....lab import EXACT, engine
from ....lab.compare import differences
from ....lab.offline import shell
from ....lab.rows import (
    LENGTHS,
    decode,
    prefill,
    prefill_left,
    prefill_solo,
    record_logits,
    row_with_image,
    rows_of,
    solo,
    text_and_image,
)
from ....lab.solo_scenarios import WHOLE, own_prefill, run_prefill, run_steps, texts, worst
from ....probes.kit import (
    BATCH_PATCHES,
    NotApplicable,
    Result,
    Target,
    family_of,
    require_own,
    tiny_of,
    with_patches,
)
from ....probes.model_batch import list_recurrent
from . import kept_deltas, probe_kept, probe_record

_STEPS = 4
_CHUNK = 3


def probe(target: Target) -> Result:
    """Red if a row's logits in a batch differ from those of its solo run."""
    if target.supports:
        return probe_record.follow_rows(target)
    if family_of(target) in kept_deltas.FAMILIES:
        return probe_kept.probe(target)
    return compare_generated(target)


def compare_generated(target: Target) -> Result:
    """Compare the logits of a tiny model's rows in batches with those of solo runs."""
    require_own(target)
    model = tiny_of(target)
    try:
        row = rows_of(model, LENGTHS)[0]
        decode(model, [row], prefill_solo(model, row), _STEPS)
    except Exception as error:
        raise NotApplicable(f"a single request fails too: {engine.where(error)}") from None
    with with_patches(BATCH_PATCHES):
        has_images = takes_images(model)
        rows = run_merged(model)
        if has_images:
            rows += _run_joined(model)
        rows += [*run_padded(model), *run_texts(model)]
        if has_images:
            rows += [*_run_images(model), *run_queued(model)]
        solos = [solo(model, row) for row in rows]
        cell = differences([row.logits for row in rows], solos, EXACT)
        if cell.verdict != "red" and engine.own_positions(model):
            cell = own_prefill(model)
        if cell.verdict != "red" and takes_turns(model):
            cell = worst(model, two_turns(model))
    return Result(cell.verdict == "red", cell.detail, cell.figure)


def run_merged(model: Any) -> list[Any]:
    """Run texts of unequal length, prefilled separately and merged."""
    rows = rows_of(model, LENGTHS)
    cache = engine.merge(model, [prefill_solo(model, row) for row in rows])
    decode(model, rows, cache, _STEPS)
    return rows


def run_padded(model: Any) -> list[Any]:
    """Run them as a left-padded batch, except for hybrids, whose recurrent layers have defects."""
    if list_recurrent(model.make_cache()):
        return []
    engine.forget(model)
    rows = rows_of(model, LENGTHS)
    decode(model, rows, prefill_left(model, rows), _STEPS)
    return rows


def run_texts(model: Any) -> list[Any]:
    """Run texts, each longer than the last one, without positions (Rapid-MLX)."""
    engine.forget(model)
    rows = rows_of(model, sorted(LENGTHS))
    for row in rows:
        record_logits([row], model.call([row.take(row.chunks[0])], model.make_cache()))
    return rows


def takes_images(model: Any) -> bool:
    """Whether a row may have an image, whose positions differ from those of text."""
    try:
        text_and_image(model, image_first=False)
    except NotApplicable:
        return False
    return True


def _run_joined(model: Any) -> list[Any]:
    rows = text_and_image(model, image_first=False)
    engine.forget(model)
    cache, more = (prefill(model, [row]) for row in rows)
    decode(model, rows, engine.extend(cache, more), _STEPS)
    return rows


def _run_images(model: Any) -> list[Any]:
    rows = [row_with_image(model, max(LENGTHS), patches) for patches in ((2, 2), (3, 2))]
    engine.forget(model)
    decode(model, rows, prefill(model, rows), _STEPS)
    return rows


def run_queued(model: Any) -> list[Any]:
    """Run an image and a text, both embedded before either is fed, in both orders.

    Returns nothing if the engine passes positions.
    """
    queued = []
    for image_first in () if engine.own_positions(model) else (False, True):
        rows = text_and_image(model, image_first)
        engine.forget(model)
        for row in rows:
            engine.embed(model, row.image)
        for row in rows:
            cache = model.make_cache()
            record_logits([row], model.call([row.take(row.chunks[0])], cache))
            decode(model, [row], cache, _STEPS)
        queued += rows
    return queued


def takes_turns(model: Any) -> bool:
    """Whether the lab embeds a text as the release does, whose steps take a sampler (0.3.12)."""
    if "sampler" not in inspect.signature(engine.generate_module(model).generate_step).parameters:
        return False
    return shell(model) is not None or bool(engine.own_positions(model))


def two_turns(model: Any) -> Iterator[Any]:
    """Two turns of ``generate_step`` in one cache, the second a text, against one prefill."""
    first, last = max(LENGTHS) + 2, -2
    for name, text, image in texts(model):
        engine.forget(model)
        expected = dict(enumerate(run_prefill(model, text, image)))
        for chunk in (WHOLE, _CHUNK) if is_chunked(model, text) else (WHOLE,):
            engine.forget(model)
            cache = model.make_cache()
            outputs = run_steps(model, text[:first], max(LENGTHS), WHOLE, image, cache)
            outputs |= run_steps(model, text, len(text) + last, chunk, None, cache, first)
            yield f"{name} and a turn in chunks of {chunk}", outputs, expected


def is_chunked(model: Any, text: list[int]) -> bool:
    """Whether the release feeds a first prompt in chunks; Qwen3-VL of mlx-vlm 0.4 does not."""
    engine.forget(model)
    try:
        run_steps(model, text, len(text) - 1, _CHUNK, None)
    except TypeError:
        return False
    return True
