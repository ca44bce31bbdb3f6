"""Every boundary snapshot of omlx ends up with the whole prompt's caches.

Why: At every block boundary of a prompt, omlx keeps the caches that cannot be cut later, recurrent
    and sliding-window ones, for the prefix cache. A snapshot in memory has the same cache objects
    that prefill continues to fill, so all snapshots end up equal to the last one. Each is cut down
    from the whole prompt when the request finishes, and memory use explodes.
How: The patch captures copies: new cache objects with new array objects for the same graph nodes.
    Nothing is computed or moved, and later writes of prefill do not change the copies.
Upstream: omlx is installed only from git; no release could be measured.
Retire when: omlx extracts the states at the boundary itself.
"""

import copy
from typing import Any

from ....core.contribution import Contribution
from ....core.verbs import Patch, wrap
from ..._shared.handles import make_handle


def capture_copies(emit: Any, *arguments: Any, **named: Any) -> Any:
    """Call the host's capture with copies of the caches among its arguments."""
    named = {name: copy_caches(value) for name, value in named.items()}
    return emit(*map(copy_caches, arguments), **named)


def copy_caches(value: Any) -> Any:
    if isinstance(value, list) and any(map(is_cache, value)):
        return [copy_cache(one) for one in value]
    return value


def copy_cache(value: Any) -> Any:
    """A copy of a cache and its contents that later steps do not change."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(copy_cache, value)) if type(value) in (list, tuple) else value
    if not is_cache(value):
        return make_handle(value)
    taken = copy.copy(value)
    vars(taken).update({name: copy_cache(held) for name, held in vars(value).items()})
    return taken


def is_cache(value: Any) -> bool:
    """Whether a value has the interface that every cache of mlx-lm and mlx-vlm has."""
    return hasattr(type(value), "state") and hasattr(value, "__dict__")


PATCH = Patch(
    id="boundary-snapshots",
    summary="every boundary snapshot of omlx ends up with the whole prompt's caches",
    targets=wrap("omlx.scheduler:Scheduler._emit_prefill_boundary_snapshot", capture_copies),
    module=__name__,
)
CONTRIBUTION = Contribution(PATCH, {"omlx": ">=0"})
