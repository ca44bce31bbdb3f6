"""Rows of a batch are rotated to another row's positions: M-RoPE models keep one rope delta.

Why
    An image takes fewer positions than tokens. The difference, the rope delta, is stored on the
    language model, where the next request overwrites it. The offset of a batch's first row is
    used for all rows, and the positions of a left-padded prompt are counted from its padding.
    mlx-vlm 0.6.4 forgets the delta that a single request's prompt came with, and up to 0.6.7 the
    models are given the position ids of the whole prompt with each of its pieces, which raises.
    From 0.6.4 on a turn that goes on from a filled cache is given positions from 0 on. In 0.7.10 it
    raises, but not by ``stream_generate`` with Qwen models.
How
    The record of a batch's first cache holds each row's delta. A call with a batch's caches gets
    explicit position ids, from each row's own offset and delta, through the model's own argument
    ``position_ids``. A row alone that has a delta gets them too. Positions that the model
    computes for a prompt with images are queued outside the model, go to the row that is fed the
    prompt's tokens, whichever prompts came in between, and are dropped after its last token.
    Positions that a host passes are cut to the piece that is read. A turn that goes on from a
    filled cache is counted on from the cache's offset and the row's delta. Ernie 4.5 VL and Falcon
    OCR compute right positions from the deltas that they are given, and without any from those
    that the last request left on the model: before a call the model gets those of the record.
Upstream
    mlx-vlm 0.5.0 accepts ``rope_deltas``, 0.6.5 passes each row's positions to the Qwen models,
    and 0.6.8 cuts them. The models of glm4v, PaddleOCR, Ernie and Falcon OCR still store deltas
    in 0.7.10. In 0.5.0 the engine raises if the model has stored those of more rows than it is fed.
Retire when
    No supported release stores positions on the model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....core.patch import Patch
from ..._shared.row_record import (
    RowRecord,
    cache_targets,
    column_of,
    fill_column,
    read_column,
    read_record,
    update_record,
)
from ..._shared.targets import MROPE, at, vlm_models
from ..._shared.unpadded import is_unpadded
from . import kept_deltas, prompts, turns
from .turns import Feed

# Qwen3.5 MoE inherits the positions of Qwen3.5.
FAMILIES = tuple(sorted((*MROPE, "qwen3_5_moe")))
# With one of these arguments a model computes a prompt's positions itself.
GRIDS = ("image_grid_thw", "video_grid_thw")


def by_row(call: Callable[..., Any]) -> Callable[..., Any]:
    """The language model's call, with the positions of each row."""
    # The place of ``cache`` among the arguments after the model and the token ids.
    place = list(inspect.signature(call).parameters).index("cache") - 2

    @functools.wraps(call)
    def replacement(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        held = kwargs.get("cache", args[place] if len(args) > place else None)
        cache: Any = held or ()
        counting_cache = find_counting_cache(cache)
        if counting_cache is None:
            return call(model, inputs, *args, **kwargs)
        record_cache, rows, length = cache[0], inputs.shape[0], inputs.shape[1]
        record = read_record(record_cache)
        if length == 1 and kwargs.get("position_ids") is None:
            own, deltas = step_positions(record, counting_cache.offset, rows)
            if own is not None:
                kwargs["position_ids"] = own
                is_recorded = deltas is not None
                if not is_recorded:
                    deltas = fill_column(record_cache, "deltas", rows)
                out = call(model, inputs, *args, **kwargs)
                if kwargs.get("rope_deltas") is None:
                    replace_model_deltas(model, deltas)
                if not is_recorded or cache[0] is not record_cache:  # some models replace caches
                    remember(cache[0], deltas, rows)
                return out
        waiting = prompts.waiting_prompts(model)
        feed = Feed(model, waiting, record_cache, counting_cache, inputs)
        given = handed = kwargs.get("rope_deltas")
        own, starts = None, None
        if (record and record.prompts) or (length > 1 and waiting):  # it may be an image prompt's
            starts = read_starts(counting_cache.offset, rows)
        if kwargs.get("position_ids") is not None:
            piece = turns.next_piece(feed, kwargs)
            kwargs["position_ids"] = piece.position_ids
            if piece.deltas is not None:
                given = piece.kept
                if handed is not None:
                    kwargs["rope_deltas"] = piece.deltas
            if starts is not None:  # the host passes positions: take its prompts off the queue
                prompts.follow_prompts(waiting, [None] * rows, starts, inputs)
        else:
            own = find_positions(feed, starts, kwargs)
            if own is not None:
                kwargs["position_ids"] = own
                given = fill_column(record_cache, "deltas", rows)
        noted = waiting.noted
        out = call(model, inputs, *args, **kwargs)
        record_cache = cache[0]  # some models replace the caches in their list
        if own is None and waiting.noted > noted:  # the call computed positions for these tokens
            starts = starts or read_starts(find_counting_cache(cache).offset - length, rows)
            feed = feed._replace(record_cache=record_cache)
            if starts and feed_prompts(feed, starts) is not None:
                return out
        if given is None and length > 1:
            given = getattr(model, "_rope_deltas", None)
        elif own is not None and handed is None:
            replace_model_deltas(model, given)
        remember(record_cache, given, rows)
        return out

    return replacement


def find_positions(feed: Feed, starts: Sequence[int] | None, passed: Mapping[str, Any]) -> Any:
    """Position ids (3, rows, length) where the host passes none; None to leave them to the model.

    Args:
        feed: the rows' next piece.
        starts: where in its text each row is, if a row may be fed an image prompt.
        passed: the arguments of the model's call.
    """
    own = None
    if starts is not None:
        own = feed_prompts(feed, starts)
    has_images = any(passed.get(name) is not None for name in GRIDS)
    if own is None and not has_images and feed.ids.shape[1] > 1:
        own = text_positions(feed)
    # A token of a prompt comes with its embedding.
    if own is None and not has_images and passed.get("inputs_embeds") is not None:
        own = turn_positions(feed)
    if own is None:
        own = positions(feed)
    return own


def step_positions(record: RowRecord | None, offset: Any, rows: int) -> tuple[Any, Any]:
    """Position ids (3, rows, 1) of a decode step, and the deltas (rows, 1) or None.

    The position ids are None if a row may be fed an image prompt, and for a row alone without a
    delta, whose positions the model counts.

    Args:
        record: the record of the rows.
        offset: the cache's, an int or an array (rows,).
        rows: how many rows the step has.
    """
    deltas = column_of(record, "deltas", rows)
    is_counted_by_model = deltas is None and not getattr(offset, "ndim", 0)
    if is_counted_by_model or (record and record.prompts):
        return None, None
    return count_positions(offset, deltas, (rows, 1)), deltas


def find_counting_cache(cache: Sequence[Any]) -> Any:
    """The first of a model's caches that has an ``offset``; None if none has."""
    for layer in cache:  # a generator would add two calls to each step
        if hasattr(layer, "offset"):
            return layer
    return None


def read_starts(offset: Any, rows: int) -> list[int] | None:
    """Where in its text each row is, read from the device; None if not known for every row."""
    starts = offset.tolist() if getattr(offset, "ndim", 0) else [int(offset)] * rows
    return starts if len(starts) == rows else None


def feed_prompts(feed: Feed, starts: Sequence[int]) -> Any:
    """Position ids (3, rows, length) of all rows, if any of them is fed an image prompt.

    Afterwards the record holds each row's delta, and the prompts that are not at their end.
    Returns None if no row is known to be fed an image prompt.

    Args:
        feed: the rows' next piece.
        starts: where in its text each row's piece begins.
    """
    ids, record_cache = feed.ids, feed.record_cache
    rows, length = ids.shape[:2]
    record = read_record(record_cache)
    held: Sequence[Any] = record.prompts if record else ()
    held = held if len(held) == rows else (None,) * rows
    fed = prompts.follow_prompts(feed.waiting, held, starts, ids, column_of(record, "deltas", rows))
    ends = [start + length for start in starts]
    unfinished = tuple(
        prompt if prompt is not None and end < prompt.length else None
        for prompt, end in zip(fed, ends, strict=True)
    )
    update_record(record_cache, prompts=unfinished if any(unfinished) else ())
    if not any(fed):
        return None
    import mlx.core as mx

    before = fill_column(record_cache, "deltas", rows)
    places, deltas = [], []
    for row, (prompt, start, end) in enumerate(zip(fed, starts, ends, strict=True)):
        delta = before[row : row + 1]
        place = count_positions(start, delta, (1, length))
        if prompt is not None:
            own = prompt.positions(max(0, start), end)
            place = mx.concatenate([place[:, :, : length - own.shape[-1]], own], axis=-1)
            delta = prompt.delta(end)
        places.append(place)
        deltas.append(delta)
    update_record(record_cache, deltas=mx.concatenate(deltas))
    return mx.concatenate(places, axis=1)


def text_positions(feed: Feed) -> Any:
    """Position ids (3, rows, length) of texts, where the model would take an image prompt's.

    None if it would not, or if a row goes on from a cache and may be fed that very prompt.
    """
    if not feed.waiting.left_on(feed.model):
        return None
    counting_cache, offset = feed.counting_cache, feed.counting_cache.offset
    is_whole = offset == 0 if isinstance(offset, int) else counting_cache.keys is None
    rows, length = feed.ids.shape[:2]
    if not is_whole:
        starts = read_starts(offset, rows)
        if starts is None or feed.waiting.continues_newest(starts, feed.ids):
            return None
    deltas = fill_column(feed.record_cache, "deltas", rows)
    update_record(feed.record_cache, deltas=deltas)
    if begins(counting_cache, length):
        return make_text_positions((rows, length))
    return count_positions(offset, deltas, (rows, length))


def turn_positions(feed: Feed) -> Any:
    """Position ids (3, rows, length) of a text that goes on from a cache.

    The model would take the delta of the last request, or count from 0. None if the host has
    computed the positions, or the rows have no deltas. Reads the tokens.
    """
    offset, ids = feed.counting_cache.offset, feed.ids
    if not isinstance(offset, int) or not offset:
        return None
    deltas = read_column(feed.record_cache, "deltas", ids.shape[0])
    if deltas is None or feed.waiting.continues_computed(offset, ids):
        return None
    return count_positions(offset, deltas, ids.shape)


def positions(feed: Feed) -> Any:
    """Position ids (3, rows, length) for the next tokens; None to leave them to the model."""
    rows, length = feed.ids.shape[:2]
    offset = feed.counting_cache.offset
    deltas = read_column(feed.record_cache, "deltas", rows)
    if not getattr(offset, "ndim", 0):
        if deltas is None or length > 1:
            return None
    elif deltas is None and length > 1:
        if holds_saved_positions(feed.model, rows, length):
            return None
        if begins(feed.counting_cache, length):
            return make_text_positions((rows, length))
    return count_positions(offset, deltas, (rows, length))


def begins(counting_cache: Any, length: int) -> bool:
    """Whether the next piece begins with every row's first token; does not wait for the device."""
    if isinstance(counting_cache.offset, int):
        return bool(counting_cache.offset == 0)
    return getattr(counting_cache, "keys", counting_cache) is None and is_unpadded(
        counting_cache, length
    )


def make_text_positions(shape: tuple[int, ...]) -> Any:
    """Position ids (3, rows, length) of texts without padding, from their first token on."""
    import mlx.core as mx

    return mx.broadcast_to(mx.arange(shape[1]), (3, *shape[:2]))


def count_positions(offset: Any, deltas: Any, shape: tuple[int, ...]) -> Any:
    """Position ids (3, rows, length), counted from the rows' offsets plus their deltas.

    ``offset`` is an int or an array (rows,).
    """
    import mlx.core as mx

    rows, length = shape[:2]
    if not getattr(offset, "ndim", 0):
        offset = mx.array([offset] * rows)
    own = mx.expand_dims(offset, 1)
    if deltas is not None:
        own = own + deltas
    if length > 1:  # a decode step does not need this graph node
        own = own + mx.arange(length)
    # Padding has no position, and its value is not used.
    return mx.broadcast_to(mx.maximum(own, 0), (3, rows, length))


def holds_saved_positions(model: Any, rows: int, length: int) -> bool:
    """Whether the positions stored on the model have the shape of these rows' prompts."""
    held = getattr(model, "_position_ids", None)
    return held is not None and held.shape[-2] == rows and held.shape[-1] >= length


def replace_model_deltas(model: Any, deltas: Any) -> None:
    """Store on the model, in place of those stored there, the deltas that its call was given.

    The model computed none, and an engine would read another batch's from it. Not for an engine
    that passes deltas: it is decoding, and those stored may be a queued prompt's.
    """
    stored = getattr(model, "_rope_deltas", None)
    if stored is not None and stored is not deltas:  # setting an attribute of a module is slow
        model._rope_deltas = deltas


def remember(record_cache: Any, deltas: Any, rows: int) -> None:
    """Write the deltas of a cache's rows to its record, if there is one for each row."""
    if deltas is not None and deltas is not read_column(record_cache, "deltas", rows):
        import mlx.core as mx

        deltas = mx.array(deltas).reshape(-1, 1)
        if deltas.shape[0] == rows:
            update_record(record_cache, deltas=deltas)


PATCH = Patch(
    id="rope-deltas",
    summary="Qwen-VL, GLM-V, PaddleOCR VL in a batch: wrong positions, rows use another row's",
    targets=(
        *at(vlm_models(*FAMILIES), {"LanguageModel.__call__": by_row}),
        *at(
            vlm_models(*FAMILIES),
            {"LanguageModel.get_rope_index": prompts.note_prompts},
            fingerprint_of=("LanguageModel.get_rope_index", "LanguageModel.__call__"),
        ),
        *at(
            vlm_models(*kept_deltas.FAMILIES),
            {"LanguageModel.__call__": kept_deltas.with_own},
        ),
        *(
            target
            for distribution in ("mlx-lm", "mlx-vlm")  # mlx-vlm's models use either's caches
            for target in cache_targets(
                distribution, "BatchKVCache", "BatchRotatingKVCache", "ArraysCache"
            )
        ),
    ),
)
