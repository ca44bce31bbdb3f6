"""Attention over quantized keys does not heed the padding of a batch.

Why
    The quantized batch caches of mlx-vlm 0.5.0 make their mask without left padding: rows
    attend to it as if it were tokens. Where there is a mask a row, of shape (rows, 1, queries,
    keys), quantized attention with grouped heads adds it to scores that have one axis more:
    rows line up with key-value heads. That fails, or, with as many heads as rows, gives each
    head another row's mask.
How
    The mask is the one that the release's ``BatchKVCache`` makes. Attention gets its mask with
    the axis that it lacks.
Upstream
    Masks: mlx-vlm 0.6.0. Grouped heads: mlx-lm 0.32.0, mlx-vlm 0.6.5.
Retire when
    No supported release is older than these.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ..._patch import Patch, Target, around


def padded_mask(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """The mask that a batch in floats with the same padding would have."""
    batch = importlib.import_module("mlx_vlm.models.cache").BatchKVCache
    return batch.make_mask(cache, *args, **kwargs)


def unfitted(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The release's own attention."""
    return original(*args, **kwargs)


def fitted(
    original: Callable[..., Any],
    queries: Any,
    q_keys: Any,
    q_values: Any,
    scale: Any,
    mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Attention with an axis for the heads of a group in the mask."""
    groups = q_keys[0].shape[-3]
    if getattr(mask, "ndim", 0) == 4 and queries.shape[1] != groups:
        rows, heads, *rest = mask.shape
        shape = (rows, 1, 1, *rest) if heads == 1 else (rows, groups, -1, *rest)
        mask = mask.reshape(shape)
    return original(queries, q_keys, q_values, scale, mask, *args, **kwargs)


def _make_mask(original: Any) -> Any:
    return around(padded_mask)(original)


def _attention(original: Any) -> Any:
    fits_itself = "ndim" in inspect.unwrap(original).__code__.co_names
    return around(unfitted if fits_itself else fitted)(original)


PATCH = Patch(
    id="quantized-masks",
    summary="rows of a quantized batch attend to padding, or to another row's, or it fails",
    targets=(
        *(
            Target("mlx-vlm", module, f"{name}.make_mask", _make_mask)
            for module, name in (
                ("mlx_vlm.models.cache", "BatchQuantizedKVCache"),
                ("mlx_vlm.turboquant", "BatchTurboQuantKVCache"),
            )
        ),
        *(
            Target(distribution, module, "quantized_scaled_dot_product_attention", _attention)
            for distribution, module in (
                ("mlx-lm", "mlx_lm.models.base"),
                ("mlx-vlm", "mlx_vlm.models.base"),
            )
        ),
    ),
    probe="mlx_patches.probes.quantized_masks:probe",
    module=__name__,
)
