"""A batch cache's ``left_padding`` and ``lengths`` move under whoever read them.

Why
    Like ``offset`` (see ``offset_alias``), these arrays are changed in place: by ``prepare``
    and ``finalize``, by a rotating cache on each step after its window wraps, and by
    ``ArraysCache.advance``. A mask or a snapshot built from one read describes another step.
How
    The attributes are read through a fresh handle, at no graph operation.
Upstream
    In place in every release up to mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    No supported release changes them in place.
"""

from __future__ import annotations

from ...core.patch import Patch, Target
from .handles import read_through_handle

_METHODS = {
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
_QUANTIZED = {("BatchQuantizedKVCache", "left_padding"): ("prepare", "finalize", "filter")}
_WHERE = {
    ("mlx-lm", "mlx_lm.models.cache"): _METHODS,
    ("mlx-vlm", "mlx_vlm.models.cache"): _METHODS | _QUANTIZED,
}

PATCH = Patch(
    id="left-padding-alias",
    summary="left padding or lengths read from a batch cache change as the cache moves on",
    targets=tuple(
        Target(
            distribution,
            module,
            f"{name}.{attribute}",
            read_through_handle(attribute),
            body=tuple(f"{name}.{method}" for method in methods),
            adds=True,
        )
        for (distribution, module), attributes in _WHERE.items()
        for (name, attribute), methods in attributes.items()
    ),
    probe="mlx_patches.probes.left_padding_alias:probe",
    module=__name__,
)
