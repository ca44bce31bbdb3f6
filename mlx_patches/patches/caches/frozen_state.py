"""A cache's ``state`` changes under whoever holds it.

Why
    ``state`` hands out the live ``keys``, ``values``, ``offset`` and ``left_padding``. A
    rotating cache overwrites its buffer in place, others do after a trim, so a snapshot kept
    for a prefix cache, a rewind or a save describes a later step than the one it was taken at.
How
    The getter's arrays are handed out as fresh handles, and its lists as new lists: same graph
    nodes, no copy, no graph operation, and nothing that the cache does later reaches them.
Upstream
    Live in every release up to mlx-lm 0.32.2 and mlx-vlm 0.7.10, class by class.
Retire when
    No supported release hands out an object that it goes on changing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around
from .handles import handle

# Class to the methods that change in place what ``state`` hands out.
_CLASSES = {
    "KVCache": ("update_and_fetch",),
    "RotatingKVCache": ("_update_in_place",),
    "QuantizedKVCache": ("update_and_fetch",),
    "ChunkedKVCache": ("update_and_fetch",),
    "ArraysCache": ("__setitem__",),
    "BatchKVCache": ("update_and_fetch",),
    "BatchRotatingKVCache": ("_update_in_place",),
}
_QUANTIZED = {"BatchQuantizedKVCache": ("update_and_fetch",)}
_WHERE = {
    ("mlx-lm", "mlx_lm.models.cache"): _CLASSES,
    ("mlx-vlm", "mlx_vlm.models.cache"): _CLASSES | _QUANTIZED,
    ("mlx-vlm", "mlx_vlm.turboquant"): {"BatchTurboQuantKVCache": ("update_and_fetch",)},
}


def frozen(getter: Callable[[Any], Any], cache: Any) -> Any:
    """The cache's state, with nothing in it that the cache will change."""
    return detached(getter(cache))


def detached(value: Any) -> Any:
    """A tree of arrays as a new tree of handles; its shape and container types stay."""
    if type(value) is tuple or type(value) is list:
        return type(value)(map(detached, value))
    if hasattr(value, "_fields"):
        return type(value)(*map(detached, value))
    return handle(value)


PATCH = Patch(
    id="frozen-state",
    summary="a state snapshot taken from a cache changes as the cache moves on",
    targets=tuple(
        Target(
            distribution,
            module,
            f"{name}.state",
            around(lambda getter, cache: frozen(getter, cache)),
            body=(f"{name}.state", *(f"{name}.{method}" for method in methods)),
        )
        for (distribution, module), classes in _WHERE.items()
        for name, methods in classes.items()
    ),
    probe="mlx_patches.probes.frozen_state:probe",
    module=__name__,
)
