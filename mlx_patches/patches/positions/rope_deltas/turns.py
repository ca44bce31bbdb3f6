"""Slice the position ids that a host passes to a chunk, and count them from the cache contents.

A host passes the position ids of a whole text with each of its chunks. If a conversation continues
a filled cache, the embedding code gets only the new turn: its position ids begin at 0, and its rope
delta ignores the cache. mlx-vlm's ``stream_generate`` computes the positions of the whole
conversation first; 0.6.8 leaves them on the model, where nothing reads them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ....core.arrays import mx
from ..._shared.row_record import column_of, fill_column, read_record, update_record
from .prompts import Waiting


class Feed(NamedTuple):
    """The next chunk of some rows' texts."""

    model: Any
    waiting: Waiting
    record_cache: Any
    counting_cache: Any
    ids: Any


class Turn(NamedTuple):
    """A text that is fed in chunks, each with the position ids of the whole text.

    Args:
        start: where in the cache the text begins.
        length: the number of position ids that a host passes.
        following: where in the cache the next chunk begins.
        whole: the position ids of the whole conversation, if the host left them on the model.
        deltas: the rope deltas that belong to them.
    """

    start: int
    length: int
    following: int
    whole: Any = None
    deltas: Any = None


class Chunk(NamedTuple):
    """The model's arguments for the next tokens of some rows.

    Args:
        position_ids: of only these tokens.
        deltas: the rows' rope deltas after the turn; None for those that the host passes.
        kept: the deltas for the record; until its end a turn is counted from those before it.
    """

    position_ids: Any
    deltas: Any = None
    kept: Any = None


def next_chunk(feed: Feed, passed: Mapping[str, Any]) -> Chunk:
    """The next tokens' position ids and rope deltas.

    A host whose caches have an array of offsets slices the position ids itself.
    """
    places, offset = passed["position_ids"], feed.counting_cache.offset
    record_cache = feed.record_cache
    rows, length = feed.ids.shape[:2]
    covered = places.shape[-1]
    if not isinstance(offset, int) or covered < length:
        return Chunk(places)
    record = read_record(record_cache)
    turn = record.turn if record else None
    if turn is None or (turn.length, turn.following) != (covered, offset):
        turn = begin_turn(feed, passed)
    end = offset + length
    is_last = end >= turn.start + covered
    if not is_last or (record and record.turn):
        update_record(record_cache, turn=None if is_last else turn._replace(following=end))
    if turn.whole is not None:
        return Chunk(slice_chunk(turn.whole, offset, length), turn.deltas, turn.deltas)
    if not turn.start:
        return Chunk(slice_chunk(places, offset, length))
    before = fill_column(record_cache, "deltas", rows)
    own = passed.get("rope_deltas")
    after = before if own is None else before + own.reshape(-1, 1).astype(before.dtype)
    places = places[..., offset - turn.start : end - turn.start]
    places = places + (before + turn.start).astype(places.dtype)
    return Chunk(places, after, after if is_last else before)


def slice_chunk(position_ids: Any, offset: int, length: int) -> Any:
    if not length < position_ids.shape[-1] >= offset + length:
        return position_ids
    return position_ids[..., offset : offset + length]


def compute_deltas(position_ids: Any) -> Any:
    """The rope deltas (rows, 1) after a text; those on the model may be another request's."""
    rows, length = position_ids.shape[-2:]
    last = position_ids.reshape(-1, rows, length).max(axis=(0, 2))
    return (last + 1 - length).reshape(rows, 1).astype(mx.int32)


def begin_turn(feed: Feed, passed: Mapping[str, Any]) -> Turn:
    """The turn that begins with a chunk; reads the device if the cache is filled."""
    places, offset, ids = passed["position_ids"], feed.counting_cache.offset, feed.ids
    rows, length = ids.shape[:2]
    covered = places.shape[-1]
    from_cache, from_first = Turn(offset, covered, offset), Turn(0, covered, offset)
    held = getattr(feed.model, "_position_ids", None)
    # A token of a prompt is passed with its embedding.
    is_prompt = covered > 1 or passed.get("inputs_embeds") is not None
    if not offset or not is_prompt or places is held:
        return from_first
    may_be_whole = covered >= offset + length
    # Those of another request may have the same shape.
    if held is not None and feed.waiting.are_of(held, offset, ids):
        whole = {"whole": held, "deltas": compute_deltas(held)}
        if held.shape[-2:] == (rows, offset + covered):
            return from_cache._replace(**whole)
        if may_be_whole and held.shape[-2:] == (rows, covered):
            return from_first._replace(**whole)
    before = column_of(read_record(feed.record_cache), "deltas", rows)
    if before is None and covered > length:
        return from_first
    if may_be_whole and feed.waiting.continues_computed(offset, ids):
        return from_first
    if places[..., 0].any().item():
        return from_first
    if may_be_whole:
        following = places[..., offset] == offset + (0 if before is None else before[:, 0])
        if following.all().item():
            return from_first
    return from_cache
