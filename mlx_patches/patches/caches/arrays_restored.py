"""A recurrent cache that was restored from its saved state dies at the next mask.

Why
    ``from_state`` makes the cache without ``__init__``, and the state of a recurrent cache is
    its slots alone: ``left_padding`` and ``lengths`` are not set. ``make_mask`` and
    ``advance`` raise AttributeError, for a prompt cache that was loaded from a file as for a
    batch that was restored.
How
    A cache that is given a state has no padding, unless it knows better: what ``__init__``
    would have said. What is saved has been fed, padding and all.
Upstream
    mlx-lm 0.30.5 sets both before ``__init__``; 0.32.0 saves them with the state.
Retire when
    No supported release is older than mlx-lm 0.30.5.
"""

from __future__ import annotations

from typing import Any

from ...core.patch import Patch, Target

NAMES = ("left_padding", "lengths")


def completing(original: property) -> property:
    """``state`` whose setter leaves nothing unset."""
    assert original.fget is not None and original.fset is not None
    get, put = original.fget, original.fset

    def save(cache: Any) -> Any:
        return get(cache)

    def restore(cache: Any, saved: Any) -> None:
        put(cache, saved)
        complete(cache)

    return property(save, restore, original.fdel, original.__doc__)


def complete(cache: Any) -> None:
    """Note that a cache has no padding, where nothing is noted."""
    for name in NAMES:
        vars(cache).setdefault(name, None)


PATCH = Patch(
    id="arrays-restored",
    summary="a recurrent cache restored from its saved state dies at the next mask",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            "ArraysCache.state",
            completing,
            body=("ArraysCache.state", "ArraysCache.__new__", "ArraysCache.make_mask"),
        ),
    ),
    probe="mlx_patches.probes.arrays_restored:probe",
    module=__name__,
)
