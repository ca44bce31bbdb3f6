"""A list of caches cannot be restored: its saved state does not say what it was made of.

Why
    ``CacheList.state`` is one flat list of the arrays of all its caches, with no class and no
    count. ``from_state``, which makes an object without calling its class, finds no caches to
    give them to: a prompt cache of such a model is saved, and cannot be loaded.
How
    The state is a list with an entry a cache, and ``meta_state`` has their classes beside
    their own.
Upstream
    mlx-lm 0.31.0 saves both.
Retire when
    No supported release is older than mlx-lm 0.31.
"""

from __future__ import annotations

import sys
from typing import Any

from ...core.patch import Patch, Target

BODY = ("CacheList.state",)


def nested(original: property) -> property:
    """The state as a list with an entry a cache."""
    return property(states, put_states, original.fdel, original.__doc__)


def states(cache: Any) -> list[Any]:
    """Each cache's state."""
    return [inner.state for inner in cache.caches]


def put_states(cache: Any, saved: Any) -> None:
    """Give each cache its state."""
    for inner, state in zip(cache.caches, saved, strict=True):
        inner.state = state


def kinds(cache: Any) -> tuple[list[str], list[Any]]:
    """The classes of the caches, by name, and what each adds to its state."""
    names = [type(inner).__name__ for inner in cache.caches]
    return names, [inner.meta_state for inner in cache.caches]


def put_kinds(cache: Any, saved: Any) -> None:
    """Give each cache what it adds to its state."""
    for inner, meta in zip(cache.caches, saved[1], strict=True):
        inner.meta_state = meta


def restored(cls: Any, state: Any, meta_state: Any) -> Any:
    """The list that had this state."""
    module = sys.modules[cls.__module__]
    pieces = zip(*meta_state, state, strict=True)
    return cls(*(getattr(module, name).from_state(part, meta) for name, meta, part in pieces))


PATCH = Patch(
    id="cachelist-state",
    summary="a saved prompt cache with lists of caches cannot be loaded",
    targets=tuple(
        target
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for target in (
            Target(distribution, module, "CacheList.state", nested),
            Target(
                distribution,
                module,
                "CacheList.meta_state",
                lambda original: property(kinds, put_kinds),
                body=BODY,
                adds=True,
            ),
            Target(
                distribution,
                module,
                "CacheList.from_state",
                lambda original: classmethod(restored),
                body=BODY,
                adds=True,
            ),
        )
    ),
    probe="mlx_patches.probes.cachelist_state:probe",
    module=__name__,
)
