"""NaN in a padding column's key or value reaches the row's real tokens.

Why
    What a model computes at a left-padding position is nobody's business, until it is NaN: the
    mask gives the column the weight 0, and 0 * NaN is NaN. Gemma 3n in mlx-vlm divides 0 by 0
    where the engine pads with zero embeddings; Moondream 3 takes the logarithm of a padding
    position, which is negative. One such column and the row says NaN from its first token on.
How
    Keys and values are made zero at left-padding columns where they enter the cache: one
    ``where`` for each, in prefill alone. Columns of real tokens are not touched, and a padding
    column had the weight 0 before, so every finite row is bit for bit the same.
Upstream
    Live in every release up to mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The caches, or the models, keep padding columns finite.
"""

from __future__ import annotations

import functools
from typing import Any

from ...core.patch import Patch, Target

# Class to the method by which a prompt enters. A decode step has no padding.
_CLASSES = {
    "BatchKVCache": "update_and_fetch",
    "BatchRotatingKVCache": "_update_concat",
}
_QUANTIZED = {"BatchQuantizedKVCache": "update_and_fetch"}
_WHERE = {
    ("mlx-lm", "mlx_lm.models.cache"): _CLASSES,
    ("mlx-vlm", "mlx_vlm.models.cache"): _CLASSES | _QUANTIZED,
}


def finite(update: Any) -> Any:
    """An update that lets no left-padding column in but as zeros."""

    @functools.wraps(update)
    def update_and_fetch(cache: Any, keys: Any, values: Any) -> Any:
        # A cache that is given other rows than it was made for says nothing of theirs.
        if keys.shape[2] > 1 and keys.shape[0] == cache.left_padding.shape[0]:
            keys, values = zeroed(cache, keys, values)
        return update(cache, keys, values)

    return update_and_fetch


def zeroed(cache: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """Keys and values (rows, heads, tokens, width) with zeros at left-padding columns."""
    import mlx.core as mx

    # A wrapped buffer is put in order of age before anything is appended.
    start = cache.keys.shape[2] if getattr(cache, "rotated", False) else cache._idx
    columns = mx.arange(start, start + keys.shape[2])
    padding = (columns < cache.left_padding[:, None])[:, None, :, None]
    return tuple(mx.where(padding, mx.array(0, x.dtype), x) for x in (keys, values))


PATCH = Patch(
    id="padding-nan",
    summary="a NaN at a left-padding position makes the row's own logits NaN",
    targets=tuple(
        Target(distribution, module, f"{name}.{method}", finite)
        for (distribution, module), classes in _WHERE.items()
        for name, method in classes.items()
    ),
    probe="mlx_patches.probes.padding_nan:probe",
    module=__name__,
)
