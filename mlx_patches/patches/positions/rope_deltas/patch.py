"""Qwen-VL, GLM-V, PaddleOCR VL in a batch: wrong positions, rows use another row's.

Why: An image takes fewer positions than tokens. The difference, the rope delta, is stored on the
    language model, where the next request overwrites it. The offset of a batch's first row is used
    for all rows, and positions of a left-padded prompt are counted from its padding. mlx-vlm 0.6.4
    loses the delta of a single request's prompt, and up to 0.6.7 each chunk of a prompt comes with
    the position ids of the whole prompt, which raises. Since 0.6.4 a turn that continues a filled
    cache gets positions from 0. In 0.7.10 it raises, except with Qwen models in
    ``stream_generate``. From 0.6.5 on, a text that Rapid-MLX feeds to a Qwen model
    gets the positions of the text before, and raises if it is longer.
How: The record of a batch's first cache holds each row's delta. A call with batch caches gets
    explicit position ids, computed from each row's offset and delta, by the model's own argument
    ``position_ids``; so does a single row with a delta. Positions that the model computes for a
    prompt with images are queued outside the model. The row that is fed the prompt's tokens claims
    them, whichever prompts came in between, and they are dropped after its last token. Positions
    that a host passes are sliced to the chunk. A turn that continues a filled cache is counted from
    the cache's offset and the row's delta. Ernie 4.5 VL and Falcon OCR compute right positions from
    deltas that are passed, but use those of the last request if none are: before a call the deltas
    of the record are stored on the model.
Upstream: mlx-vlm 0.5.0 accepts ``rope_deltas``, 0.6.5 passes each row's positions to the Qwen
    models, and 0.6.8 slices them. glm4v, PaddleOCR, Ernie and Falcon OCR still store deltas in
    0.7.10. In 0.5.0 the engine raises if the model has stored the deltas of more rows than the call
    has.
Retire when: No supported release stores positions on the model.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.verbs import Function, Patch, define, mx, result, vlm_family
from ..._shared.row_record import (
    RowRecord,
    cache_targets,
    column_of,
    fill_column,
    read_column,
    read_record,
    update_record,
)
from ..._shared.targets import MROPE
from ..._shared.unpadded import is_unpadded
from . import kept_deltas, prompts, turns
from .turns import Feed

# Qwen3.5 MoE inherits the positions of Qwen3.5.
FAMILIES = tuple(sorted([*MROPE.split(), "qwen3_5_moe"]))
# With one of these arguments a model computes a prompt's positions itself.
GRIDS = ("image_grid_thw", "video_grid_thw")


def call_with_positions(call: Function) -> Function:
    """Factory of the language model's call, with the positions of each row."""
    # The place of ``cache`` among the arguments after the model and the token ids.
    place = list(inspect.signature(call).parameters).index("cache") - 2

    @functools.wraps(call)
    def call_model(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        held = kwargs.get("cache", args[place] if len(args) > place else None)
        cache: Any = held or ()
        counting_cache = find_counting_cache(cache)
        if counting_cache is None:
            return call(model, inputs, *args, **kwargs)
        record_cache, rows, length = cache[0], inputs.shape[0], inputs.shape[1]
        record = read_record(record_cache)
        if length == 1 and kwargs.get("position_ids") is None:
            own, deltas = count_step(record, counting_cache.offset, rows)
            if own is not None:
                kwargs["position_ids"] = own
                is_recorded = deltas is not None
                if not is_recorded:
                    deltas = fill_column(record_cache, "deltas", rows)
                out = call(model, inputs, *args, **kwargs)
                if kwargs.get("rope_deltas") is None:
                    replace_model_deltas(model, deltas)
                if not is_recorded or cache[0] is not record_cache:  # some models replace caches
                    store_deltas(cache[0], deltas, rows)
                return out
        waiting = prompts.find_waiting(model)
        feed = Feed(model, waiting, record_cache, counting_cache, inputs)
        given = handed = kwargs.get("rope_deltas")
        own, starts = None, None
        if (record and record.prompts) or (length > 1 and waiting):  # it may be an image prompt's
            starts = read_starts(counting_cache.offset, rows)
        if kwargs.get("position_ids") is not None:
            chunk = turns.next_chunk(feed, kwargs)
            kwargs["position_ids"] = chunk.position_ids
            if chunk.deltas is not None:
                given = chunk.kept
                if handed is not None:
                    kwargs["rope_deltas"] = chunk.deltas
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
        store_deltas(record_cache, given, rows)
        return out

    return call_model


def find_positions(feed: Feed, starts: Sequence[int] | None, passed: Mapping[str, Any]) -> Any:
    """Position ids (3, rows, length) if the host passes none; None to leave them to the model."""
    own = None
    if starts is not None:
        own = feed_prompts(feed, starts)
    has_images = any(passed.get(name) is not None for name in GRIDS)
    if own is None and not has_images and feed.ids.shape[1] > 1:
        own = find_text_positions(feed)
    # A token of a prompt is passed with its embedding.
    if own is None and not has_images and passed.get("inputs_embeds") is not None:
        own = find_turn_positions(feed)
    if own is None:
        own = find_next_positions(feed)
    return own


def count_step(record: RowRecord | None, offset: Any, rows: int) -> tuple[Any, Any]:
    """Position ids (3, rows, 1) of a decode step, and the deltas (rows, 1) or None.

    The position ids are None if a row may be fed an image prompt, and for a single row without a
    delta, whose positions the model counts.
    """
    deltas = column_of(record, "deltas", rows)
    is_counted_by_model = deltas is None and not getattr(offset, "ndim", 0)
    if is_counted_by_model or (record and record.prompts):
        return None, None
    return count_positions(offset, deltas, (rows, 1)), deltas


def find_counting_cache(cache: Sequence[Any]) -> Any:
    for layer in cache:  # a generator would add two calls to each step
        if hasattr(layer, "offset"):
            return layer
    return None


def read_starts(offset: Any, rows: int) -> list[int] | None:
    """Each row's place in its text, read from the device; None if not known for every row."""
    starts = offset.tolist() if getattr(offset, "ndim", 0) else [int(offset)] * rows
    return starts if len(starts) == rows else None


def feed_prompts(feed: Feed, starts: Sequence[int]) -> Any:
    """Position ids (3, rows, length) of all rows, if any of them is fed an image prompt.

    Stores each row's delta and the unfinished prompts in the record.
    Returns None if no row is known to be fed an image prompt.
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


def find_text_positions(feed: Feed) -> Any:
    """Position ids (3, rows, length) of texts, if the model would use another prompt's.

    None if it would not, or if a row continues a cache and may be fed that prompt.
    """
    counting_cache, offset = feed.counting_cache, feed.counting_cache.offset
    is_whole = offset == 0 if isinstance(offset, int) else counting_cache.keys is None
    rows, length = feed.ids.shape[:2]
    if not feed.waiting.is_stored_on(feed.model) and not (
        is_whole and has_too_few_positions(feed.model, length)
    ):
        return None
    if not is_whole:
        starts = read_starts(offset, rows)
        if starts is None or feed.waiting.continues_newest(starts, feed.ids):
            return None
    deltas = fill_column(feed.record_cache, "deltas", rows)
    update_record(feed.record_cache, deltas=deltas)
    if is_beginning(counting_cache, length):
        return make_text_positions((rows, length))
    return count_positions(offset, deltas, (rows, length))


def find_turn_positions(feed: Feed) -> Any:
    """Position ids (3, rows, length) of a text that continues a cache.

    The model would use the delta of the last request, or count from 0. None if the host has
    computed the positions, or the rows have no deltas. Reads the tokens.
    """
    offset, ids = feed.counting_cache.offset, feed.ids
    if not isinstance(offset, int) or not offset:
        return None
    deltas = read_column(feed.record_cache, "deltas", ids.shape[0])
    if deltas is None or feed.waiting.continues_computed(offset, ids):
        return None
    return count_positions(offset, deltas, ids.shape)


def find_next_positions(feed: Feed) -> Any:
    """Position ids (3, rows, length) for the next tokens; None to leave them to the model."""
    rows, length = feed.ids.shape[:2]
    offset = feed.counting_cache.offset
    deltas = read_column(feed.record_cache, "deltas", rows)
    if not getattr(offset, "ndim", 0):
        if deltas is None or length > 1:
            return None
    elif deltas is None and length > 1:
        if has_saved_positions(feed.model, rows, length):
            return None
        if is_beginning(feed.counting_cache, length):
            return make_text_positions((rows, length))
    return count_positions(offset, deltas, (rows, length))


def is_beginning(counting_cache: Any, length: int) -> bool:
    """Whether the next chunk begins with every row's first token, without a device read."""
    if isinstance(counting_cache.offset, int):
        return bool(counting_cache.offset == 0)
    return getattr(counting_cache, "keys", counting_cache) is None and is_unpadded(
        counting_cache, length
    )


def make_text_positions(shape: tuple[int, ...]) -> Any:
    """Position ids (3, rows, length) of texts without padding, from their first token."""
    return mx.broadcast_to(mx.arange(shape[1]), (3, *shape[:2]))


def count_positions(offset: Any, deltas: Any, shape: tuple[int, ...]) -> Any:
    """Position ids (3, rows, length), counted from the rows' offsets plus their deltas.

    ``offset`` is an int or an array (rows,).
    """
    rows, length = shape[:2]
    if not getattr(offset, "ndim", 0):
        offset = mx.array([offset] * rows)
    own = mx.expand_dims(offset, 1)
    if deltas is not None:
        own = own + deltas
    if length > 1:  # a decode step does not need this graph node
        own = own + mx.arange(length)
    # Padding has no position; its value is not used.
    return mx.broadcast_to(mx.maximum(own, 0), (3, rows, length))


def has_saved_positions(model: Any, rows: int, length: int) -> bool:
    """Whether the positions stored on the model have the shape of these rows' prompts."""
    held = getattr(model, "_position_ids", None)
    return held is not None and held.shape[-2] == rows and held.shape[-1] >= length


def has_too_few_positions(model: Any, length: int) -> bool:
    """Whether the positions stored on the model are those of a shorter prompt."""
    held = getattr(model, "_position_ids", None)
    return held is not None and held.shape[-1] < length


def replace_model_deltas(model: Any, deltas: Any) -> None:
    """Replace the deltas stored on the model with those of its call.

    The model computed none, and an engine would read another batch's from it. Not used for an
    engine that passes deltas: it is decoding, and the stored ones may be a queued prompt's.
    """
    stored = getattr(model, "_rope_deltas", None)
    if stored is not None and stored is not deltas:  # setting an attribute of a module is slow
        model._rope_deltas = deltas


def store_deltas(record_cache: Any, deltas: Any, rows: int) -> None:
    """Store the deltas of a cache's rows in its record, if there is one per row."""
    if deltas is not None and deltas is not read_column(record_cache, "deltas", rows):
        deltas = mx.array(deltas).reshape(-1, 1)
        if deltas.shape[0] == rows:
            update_record(record_cache, deltas=deltas)


_KINDS = ("BatchKVCache", "BatchRotatingKVCache", "ArraysCache")

PATCH = Patch(
    id="rope-deltas",
    targets=(
        *define(vlm_family(" ".join(FAMILIES), "LanguageModel.__call__"), call_with_positions),
        *result(
            vlm_family(" ".join(FAMILIES), "LanguageModel.get_rope_index"),
            prompts.note_prompts,
            fingerprint_of=("LanguageModel.get_rope_index", "LanguageModel.__call__"),
        ),
        *define(
            vlm_family(" ".join(kept_deltas.FAMILIES), "LanguageModel.__call__"),
            kept_deltas.call_with_deltas,
        ),
        # mlx-vlm's models use either's caches.
        *cache_targets("mlx-lm", *_KINDS),
        *cache_targets("mlx-vlm", *_KINDS),
    ),
)
