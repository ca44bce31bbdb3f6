"""``advance`` of recurrent caches: counting what was fed, without a graph that grows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ....core.patch import Patch, Target, around
from ..plain.reads import make_handle
from .contract import LM, VLM, write_padding

# -- advance: arrays-advance ---------------------------------------------------------------------

# The attribute of a cache that knows since when it counts.
NOTE = "_mlx_patches_counted"
# Rows join and leave less often than they step: what they chain is evaluated this seldom.
CHANGES = 16


class Counted(NamedTuple):
    """What a cache's padding was, and how many positions were fed since; never changed.

    Args:
        since: which application of the patch counts; an earlier one may have missed some.
        left_padding: what it was when the count began, (rows,) or None.
        lengths: likewise.
        fed: how many positions were fed since.
        left_padding_now: as the count left it: another object there is another's.
        lengths_now: likewise.
        changes: how often others changed either.
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
    """The release's own ``advance``, from where the count began and by all that was fed since."""
    held = cache.__dict__
    left_now, lengths_now = held.get("left_padding"), held.get("lengths")
    if left_now is None and lengths_now is None:
        return advance(cache, N)
    note: Counted | None = held.get(NOTE)
    if note is None or not goes_on(note, since, left_now, lengths_now):
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
    return None


def goes_on(note: Counted, since: object, left: Any, lengths: Any) -> bool:
    """Whether nobody but this count changed the padding."""
    return note.since is since and note.left_padding_now is left and note.lengths_now is lengths


def start_count(
    cache: Any, last: Counted | None, since: object, left: Any, lengths: Any
) -> Counted:
    """Count from this padding on."""
    changes = 0 if last is None else last.changes + 1
    if changes % CHANGES == CHANGES - 1:
        evaluate_with_state(cache, [part for part in (left, lengths) if part is not None])
    return Counted(since, make_handle(left), make_handle(lengths), 0, left, lengths, changes)


def evaluate_with_state(cache: Any, padding: list[Any]) -> None:
    """Have the padding evaluated when the next step reads the state."""
    import mlx.core as mx

    if cache.cache[0] is not None:
        cache.cache[0] = mx.depends(cache.cache[0], padding)


def count_from_start(advance: Any) -> Any:
    """Factory of the replacement: each application begins its own counts."""
    return around(functools.partial(advance_from_start, object()))(advance)


ARRAYS_ADVANCE = Patch(
    id="arrays-advance",
    summary="a hybrid model's batch grows by a graph node a token and layer until the host dies",
    targets=tuple(Target(*where, "ArraysCache.advance", count_from_start) for where in (LM, VLM)),
    probe="mlx_patches.probes.arrays_advance:probe",
    module=__name__,
    doc="""A hybrid model's batch grows by a graph node a token and layer until the host dies.

    Why
        ``advance`` subtracts what was fed from ``left_padding`` and ``lengths``, lazily. One
        layer's are read for the mask; those of the others are never evaluated, and each token
        chains another node, with a buffer of its own, to all before it: memory grows, steps get
        slower, and Metal ends the process with "Resource limit (499000) exceeded". Qwen3.5,
        Qwen3-Next, Kimi Linear and every other hybrid.
    How
        The cache keeps what its padding was when the count began and how many positions were fed
        since, a number. ``advance`` starts from the first and is given the second: one node in
        place of a chain. Where rows join or leave the count begins anew; every sixteenth time
        the padding is evaluated with the state of the next step. No step waits for the device.
    Upstream
        mlx-lm 1641, 1642, 1632, 1644, 1332, 1807; not fixed in mlx-lm 0.32.2. mlx-vlm 1972:
        0.6.16 counts in a number.
    Retire when
        No supported release chains what it counts.
    """,
)
