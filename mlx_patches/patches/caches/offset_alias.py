"""A batch cache's ``offset`` moves under whoever read it.

Why
    ``offset`` is an array, advanced in place (``self.offset += n``) by ``update_and_fetch``,
    ``trim``, ``prepare`` and ``finalize``. Attention reads it before the update and ropes
    queries after it, so queries are rotated one step further than their keys. Gemma 4 in
    mlx-vlm 0.4.3: the logits of a batch differ from those of each row alone by up to 5.3.
How
    The attribute is read through a fresh handle: a new object on the same graph node, so what
    was read stays what it was, in any model and any host, at no graph operation.
Upstream
    mlx-lm 0.32.0 rebinds ``offset`` instead of advancing it. mlx-vlm moved the copies of these
    classes into its own ``models/cache.py`` in 0.6.4, with the defect.
Retire when
    No supported release advances ``offset`` in place.
"""

from __future__ import annotations

from ...core.patch import Patch, Target
from .handles import read_through_handle


def _targets() -> tuple[Target, ...]:
    bodies = {
        "BatchKVCache": ("update_and_fetch", "trim", "prepare", "finalize"),
        "BatchRotatingKVCache": (
            "_update_in_place",
            "_update_concat",
            "trim",
            "prepare",
            "finalize",
        ),
    }
    quantized = {"BatchQuantizedKVCache": ("update_and_fetch", "trim")}
    where: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
        ("mlx-lm", "mlx_lm.models.cache"): bodies,
        ("mlx-vlm", "mlx_vlm.models.cache"): bodies | quantized,
        ("mlx-vlm", "mlx_vlm.turboquant"): {"BatchTurboQuantKVCache": ("update_and_fetch", "trim")},
    }
    return tuple(
        Target(
            distribution,
            module,
            f"{name}.offset",
            read_through_handle("offset"),
            body=tuple(f"{name}.{method}" for method in methods),
            adds=True,
        )
        for (distribution, module), classes in where.items()
        for name, methods in classes.items()
    )


PATCH = Patch(
    id="offset-alias",
    summary="a cache offset read before an update moves with it: queries and keys rotate apart",
    targets=_targets(),
    probe="mlx_patches.probes.offset_alias:probe",
    module=__name__,
)
