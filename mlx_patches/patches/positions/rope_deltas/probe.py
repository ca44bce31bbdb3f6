"""Decodes rows with different positions: merged texts, and rows with images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny_of
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches
from . import kept_deltas

_STEPS = 4
_PIECE = 3


def probe(target: Target) -> Result:
    """Red where a row's logits in a batch differ from those alone."""
    if target.supports:
        from .probe_record import follow_rows

        return follow_rows(target)
    if target.module.split(".")[2] in kept_deltas.FAMILIES:
        from .probe_kept import probe as take_turns

        return take_turns(target)
    return compare_generated(target)


def compare_generated(target: Target) -> Result:
    """Compare the logits of a tiny model's rows in batches with those alone."""
    require_own(target)
    from ....lab import EXACT, alone_scenarios, engine
    from ....lab.compare import differences
    from ....lab.rows import LENGTHS, decode, prefill_alone, rows_of, solo

    model = tiny_of(target)
    try:
        row = rows_of(model, LENGTHS)[0]
        decode(model, [row], prefill_alone(model, row), _STEPS)
    except Exception as error:
        raise NotApplicable(f"a row alone fails, too: {engine.where(error)}") from None
    with with_patches(BATCH_PATCHES):
        rows = [
            *merged_texts(model),
            *joined_image(model),
            *padded_texts(model),
            *images_together(model),
            *queued_prompts(model),
        ]
        alone = [solo(model, row) for row in rows]
        cell = differences([row.logits for row in rows], alone, EXACT)
        if cell.verdict != "red" and engine.own_positions(model):
            cell = alone_scenarios.own_prefill(model)
        if cell.verdict != "red" and takes_turns(model):
            cell = alone_scenarios.worst(model, two_turns(model))
    return Result(cell.verdict == "red", cell.detail, cell.figure)


def merged_texts(model: Any) -> list[Any]:
    """Texts of unequal length, prefilled alone and merged."""
    from ....lab import engine
    from ....lab.rows import LENGTHS, decode, prefill_alone, rows_of

    rows = rows_of(model, LENGTHS)
    cache = engine.merge(model, [prefill_alone(model, row) for row in rows])
    decode(model, rows, cache, _STEPS)
    return rows


def padded_texts(model: Any) -> list[Any]:
    """The same as a left-padded batch; none for hybrids: recurrent layers have other defects."""
    from ....lab import engine
    from ....lab.rows import LENGTHS, decode, prefill_left, rows_of
    from ..._shared.rows import recurrent

    if any(True for _ in recurrent(model.make_cache())):
        return []
    engine.forget(model)
    rows = rows_of(model, LENGTHS)
    decode(model, rows, prefill_left(model, rows), _STEPS)
    return rows


def joined_image(model: Any) -> list[Any]:
    """A text, and a row with an image that joins it; none where the model takes no images."""
    from ....lab import engine
    from ....lab.rows import decode, prefill, text_and_image

    try:
        rows = text_and_image(model, image_first=False)
    except NotApplicable:
        return []
    engine.forget(model)
    cache, more = (prefill(model, [row]) for row in rows)
    decode(model, rows, engine.extend(cache, more), _STEPS)
    return rows


def images_together(model: Any) -> list[Any]:
    """Rows with images of two shapes in one batch; none where the model takes no images."""
    from ....lab import engine
    from ....lab.rows import LENGTHS, decode, prefill, row_with_image

    try:
        rows = [row_with_image(model, max(LENGTHS), patches) for patches in ((2, 2), (3, 2))]
    except NotApplicable:
        return []
    engine.forget(model)
    decode(model, rows, prefill(model, rows), _STEPS)
    return rows


def queued_prompts(model: Any) -> list[Any]:
    """An image and a text, both embedded before either is fed alone; in both orders."""
    from ....lab import engine
    from ....lab.rows import decode, record_logits, text_and_image

    queued = []
    for image_first in (False, True):
        try:
            rows = text_and_image(model, image_first)
        except NotApplicable:
            return []
        if engine.own_positions(model):
            return []
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
    import inspect

    from ....lab import engine
    from ....lab.offline import shell

    if "sampler" not in inspect.signature(engine.generate_module(model).generate_step).parameters:
        return False
    return shell(model) is not None or bool(engine.own_positions(model))


def two_turns(model: Any) -> Iterator[Any]:
    """Two turns of ``generate_step`` in one cache, the second a text, against one prefill."""
    from ....lab import alone_scenarios as alone
    from ....lab import engine
    from ....lab.rows import LENGTHS

    first, last = max(LENGTHS) + 2, -2
    for name, text, image in alone.texts(model):
        engine.forget(model)
        expected = dict(enumerate(alone.prefilled(model, text, image)))
        for piece in (alone.WHOLE, _PIECE) if reads_pieces(model, text) else (alone.WHOLE,):
            engine.forget(model)
            cache = model.make_cache()
            said = alone.stepped(model, text[:first], max(LENGTHS), alone.WHOLE, image, cache)
            said |= alone.stepped(model, text, len(text) + last, piece, None, cache, first)
            yield f"{name} and a turn in pieces of {piece}", said, expected


def reads_pieces(model: Any, text: list[int]) -> bool:
    """Whether the release reads a first prompt in pieces; Qwen3-VL of mlx-vlm 0.4 does not."""
    from ....lab import alone_scenarios as alone
    from ....lab import engine

    engine.forget(model)
    try:
        alone.stepped(model, text, len(text) - 1, _PIECE, None)
    except TypeError:
        return False
    return True
