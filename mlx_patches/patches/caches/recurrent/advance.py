"""``advance`` of recurrent caches: count fed positions in a graph of constant size."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ....core.verbs import Patch, around, define, in_caches, mx
from ..._shared.handles import make_handle
from .contract import write_padding

# The cache attribute that holds its ``Counted``.
NOTE = "_mlx_patches_counted"
# The padding gains a node each time rows join or leave; it is evaluated once every so many times.
CHANGES = 16


class Counted(NamedTuple):
    """A cache's padding when a count started, and the number of positions fed since. Immutable.

    Args:
        since: identifies the application of the patch; a count from an earlier one may be stale.
        left_padding: its value when the count started, (rows,) or None.
        lengths: likewise.
        fed: the number of positions fed since.
        left_padding_now: the array that the count last set. A different object in the cache means
            that other code changed the padding.
        lengths_now: likewise.
        changes: how often other code changed either.
    """

    since: object
    left_padding: Any
    lengths: Any
    fed: int
    left_padding_now: Any
    lengths_now: Any
    changes: int


def advance_from_start(
    since: object, advance: Callable[[Any, int], None], cache: Any, N: int
) -> None:
    """Run the release's ``advance`` from the count's start, by all positions fed since."""
    held = cache.__dict__
    left_now, lengths_now = held.get("left_padding"), held.get("lengths")
    note: Counted | None = held.get(NOTE)
    if note is None or not is_continued(note, since, left_now, lengths_now):
        note = start_count(cache, note, since, left_now, lengths_now)
    _, left, lengths, fed, _, _, changes = note
    # Handles: the release changes them in place.
    if left is not None:
        held["left_padding"] = left.__copy__()
    if lengths is not None:
        held["lengths"] = lengths.__copy__()
    try:
        advance(cache, fed + N)
    except BaseException:
        write_padding(cache, {"left_padding": left_now, "lengths": lengths_now})
        raise
    left_now, lengths_now = held.get("left_padding"), held.get("lengths")
    held[NOTE] = Counted(since, left, lengths, fed + N, left_now, lengths_now, changes)


def has_padding(cache: Any, N: int) -> bool:
    held = cache.__dict__
    return held.get("left_padding") is not None or held.get("lengths") is not None


def is_continued(note: Counted, since: object, left: Any, lengths: Any) -> bool:
    """Whether only this count has changed the padding."""
    return note.since is since and note.left_padding_now is left and note.lengths_now is lengths


def start_count(
    cache: Any, last: Counted | None, since: object, left: Any, lengths: Any
) -> Counted:
    changes = 0 if last is None else last.changes + 1
    if changes % CHANGES == CHANGES - 1 and cache.cache[0] is not None:
        # The state depends on the padding from here on, so the next step evaluates both.
        padding = [part for part in (left, lengths) if part is not None]
        cache.cache[0] = mx.depends(cache.cache[0], padding)
    return Counted(since, make_handle(left), make_handle(lengths), 0, left, lengths, changes)


def count_from_start(advance: Any) -> Any:
    """Factory of the replacement; each application of the patch starts new counts."""
    return around(functools.partial(advance_from_start, object()))(advance)


ARRAYS_ADVANCE = Patch(
    id="arrays-advance",
    severity="memory",
    targets=define(in_caches("ArraysCache.advance"), count_from_start, when=has_padding),
    probe=".probe_advance:probe",
    doc="""mlx-lm and mlx-vlm, hybrid models: a batch leaks graph nodes with each token until
    Metal aborts.

    Why: ``advance`` subtracts the number of fed positions from ``left_padding`` and ``lengths``,
        lazily. Only one layer's arrays are read, for the mask; those of the other layers are never
        evaluated, and each token adds a node and its buffer to the chain. Memory grows, steps get
        slower, and Metal aborts the process with "Resource limit (499000) exceeded". Affects
        Qwen3.5, Qwen3-Next, Kimi Linear and every other hybrid.
    How: The cache keeps the padding at the start of a count, and the number of positions fed since,
        a Python int. ``advance`` subtracts that number from that padding: one node instead of a
        chain. When rows join or leave, a new count starts; every sixteenth time the padding is
        evaluated with the next step's state. No step waits for the device.
    Upstream: mlx-lm 1641, 1642, 1632, 1644, 1332, 1807; not fixed in mlx-lm 0.32.2. mlx-vlm 1972:
        0.6.16 counts in a Python number.
    Retire when: No supported release builds such a chain.
    """,
)
