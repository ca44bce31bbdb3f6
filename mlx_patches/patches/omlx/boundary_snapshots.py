"""A snapshot of omlx's caches at a block boundary goes on changing as the prompt is processed.

Why
    At every block boundary of a prompt omlx keeps the caches that cannot be cut later, recurrent
    and sliding-window ones, for the prefix cache. Where they stay in memory these are the caches
    that prefill goes on filling: every snapshot ends as the last one, each is cut down from the
    whole prompt when the request finishes, and memory use explodes there.
How
    What is captured are copies: other objects, whose arrays are handles of their own on the same
    graph nodes. Nothing is computed or moved, and what prefill writes later reaches none of them.
Upstream
    omlx is installed from git alone; no release of it could be measured.
Retire when
    omlx extracts the states at the boundary itself.
"""

from __future__ import annotations

import copy
from typing import Any

from ...core.contribution import Contribution
from ...core.patch import Patch, Target, around
from ..caches.plain.reads import make_handle


def captured(emit: Any, *arguments: Any, **named: Any) -> Any:
    """The host's own capture, of copies of the caches among its arguments."""
    named = {name: frozen(value) for name, value in named.items()}
    return emit(*map(frozen, arguments), **named)


def frozen(value: Any) -> Any:
    """A list of caches as a list of copies; anything else as it is."""
    if isinstance(value, list) and any(map(is_cache, value)):
        return [owned(one) for one in value]
    return value


def owned(value: Any) -> Any:
    """What no later step of a cache changes: a copy of a cache, and of all that it holds."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(owned, value)) if type(value) in (list, tuple) else value
    if not is_cache(value):
        return make_handle(value)
    taken = copy.copy(value)
    vars(taken).update({name: owned(held) for name, held in vars(value).items()})
    return taken


def is_cache(value: Any) -> bool:
    """Whether it has the interface that every cache of mlx-lm and mlx-vlm has."""
    return hasattr(type(value), "state") and hasattr(value, "__dict__")


PATCH = Patch(
    id="boundary-snapshots",
    summary="every boundary snapshot of omlx ends as the whole prompt's caches",
    targets=(
        Target(
            "omlx",
            "omlx.scheduler",
            "Scheduler._emit_prefill_boundary_snapshot",
            around(lambda emit, *arguments, **named: captured(emit, *arguments, **named)),
        ),
    ),
    probe="mlx_patches.probes.boundary_snapshots:probe",
    module=__name__,
)
CONTRIBUTION = Contribution(PATCH, {"omlx": ">=0"})
