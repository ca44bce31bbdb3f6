"""Make arrays that were read from a cache immune to its later updates.

``+=`` changes an ``mx.array`` in place, for every holder of the object. A handle is a new Python
object on the same graph node (``array.__copy__``, 40 ns, no operation), which an in-place update
of the cache does not change. ``self.offset += n`` still works: it reads a handle, advances it, and
stores it.
"""

from typing import Any

from ....core.patch import read_stored
from ....core.verbs import Patch, Target, convert, mx, result
from ..._shared.handles import make_handle
from ..._shared.targets import LM_CACHES, VLM_CACHES

_TURBO = "mlx_vlm.turboquant"


def _read_anew(
    module: str, cls: str, attribute: str, methods: tuple[str, ...]
) -> tuple[Target, ...]:
    """The target that adds an attribute, whose reads return new handles; ``methods`` change it."""

    def read(instance: Any) -> Any:
        try:
            value = instance.__dict__[attribute]
            # None is common: a recurrent cache has no padding most of the time.
            return None if value is None else value.__copy__()
        except (AttributeError, KeyError):  # an int, or not set yet
            return read_stored(instance, attribute)

    bodies = (f"{cls}.{method}" for method in methods)
    return convert(f"{module}:{cls}.{attribute}", *bodies, read=read, guarded=False)


_OFFSETS: dict[str, tuple[str, ...]] = {
    "BatchKVCache": ("update_and_fetch", "trim", "prepare", "finalize"),
    "BatchRotatingKVCache": ("_update_in_place", "_update_concat", "trim", "prepare", "finalize"),
}

OFFSET_ALIAS = Patch(
    id="offset-alias",
    targets=tuple(
        target
        for module, classes in (
            (LM_CACHES, _OFFSETS),
            (VLM_CACHES, _OFFSETS | {"BatchQuantizedKVCache": ("update_and_fetch", "trim")}),
            (_TURBO, {"BatchTurboQuantKVCache": ("update_and_fetch", "trim")}),
        )
        for cls, methods in classes.items()
        for target in _read_anew(module, cls, "offset", methods)
    ),
    probe=".probe_offset:probe",
    doc="""mlx-lm and mlx-vlm: wrong RoPE positions in a batch if a model reads the offset
    before an update.

    Why: ``offset`` is an array, advanced in place (``self.offset += n``) by ``update_and_fetch``,
        ``trim``, ``prepare`` and ``finalize``. Attention reads it before the update and applies
        RoPE to queries after it, so queries are one step ahead of their keys. Gemma 4 in mlx-vlm
        0.4.3: the logits of a batch differ from solo runs by up to 5.3.
    How: Each read returns a handle: a new object on the same graph node, which later updates do not
        change. It works for every model and host, and adds no graph operation.
    Upstream: mlx-lm 0.32.0 rebinds ``offset`` instead of advancing it. mlx-vlm's copies of these
        classes, in ``models/cache.py`` since 0.6.4, have the defect.
    Retire when: No supported release advances ``offset`` in place.
    """,
)


_PADDINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("BatchKVCache", "left_padding"): ("prepare", "finalize", "filter"),
    ("BatchRotatingKVCache", "left_padding"): (
        "_update_in_place",
        "_update_concat",
        "prepare",
        "finalize",
    ),
    ("ArraysCache", "left_padding"): ("advance",),
    ("ArraysCache", "lengths"): ("advance",),
}
_QUANTIZED_PADDINGS = {("BatchQuantizedKVCache", "left_padding"): ("prepare", "finalize", "filter")}

LEFT_PADDING_ALIAS = Patch(
    id="left-padding-alias",
    targets=tuple(
        target
        for module, attributes in (
            (LM_CACHES, _PADDINGS),
            (VLM_CACHES, _PADDINGS | _QUANTIZED_PADDINGS),
        )
        for (cls, attribute), methods in attributes.items()
        for target in _read_anew(module, cls, attribute, methods)
    ),
    probe=".probe_padding:probe",
    doc="""mlx-lm and mlx-vlm batch caches: masks use left padding and lengths of a later step.

    Why: Like ``offset`` (see ``offset-alias``), these arrays are changed in place: by ``prepare``
        and ``finalize``, by a rotating cache on each step after its window wraps, and by
        ``ArraysCache.advance``. A mask or snapshot made from them then belongs to a later step.
    How: Each read returns a new handle, which adds no graph operation.
    Upstream: Every release up to mlx-lm 0.32.2 and mlx-vlm 0.7.10 changes them in place.
    Retire when: No supported release changes them in place.
    """,
)


# The methods of each class that change the arrays of ``state`` in place.
_STATES: dict[str, tuple[str, ...]] = {
    "KVCache": ("update_and_fetch",),
    "RotatingKVCache": ("_update_in_place",),
    "QuantizedKVCache": ("update_and_fetch",),
    "ChunkedKVCache": ("update_and_fetch",),
    "ArraysCache": ("__setitem__",),
    "BatchKVCache": ("update_and_fetch",),
    "BatchRotatingKVCache": ("_update_in_place",),
}


def copy_state(state: Any) -> Any:
    """A cache's state, a tree of arrays, as new objects; its containers keep their types."""
    kind = type(state)
    if kind is tuple or kind is list:
        # Without a frame per array: engines read every layer's state after each prompt chunk.
        try:
            return kind(map(mx.array.__copy__, state))
        except TypeError:  # not only arrays
            return kind(map(copy_state, state))
    return kind(*map(copy_state, state)) if hasattr(state, "_fields") else make_handle(state)


FROZEN_STATE = Patch(
    id="frozen-state",
    every_model=True,
    targets=tuple(
        target
        for module, classes in (
            (LM_CACHES, _STATES),
            (VLM_CACHES, _STATES | {"BatchQuantizedKVCache": ("update_and_fetch",)}),
            (_TURBO, {"BatchTurboQuantKVCache": ("update_and_fetch",)}),
        )
        for cls, methods in classes.items()
        for target in result(
            f"{module}:{cls}.state",
            copy_state,
            fingerprint_of=(f"{cls}.state", *(f"{cls}.{method}" for method in methods)),
        )
    ),
    probe=".probe_state:probe",
    doc="""mlx-lm and mlx-vlm caches: a saved state still changes while generation continues.

    Why: ``state`` returns the live ``keys``, ``values``, ``offset`` and ``left_padding``. A
        rotating cache overwrites its buffer in place; other caches do so after a trim. A snapshot
        for a prefix cache, a rewind or a save then belongs to a later step.
    How: The getter returns its arrays as new handles, and its lists as new lists: no copy, no graph
        operation. Later updates of the cache do not change them.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10; the affected classes differ by release.
    Retire when: No supported release returns an object that it changes later.
    """,
)
