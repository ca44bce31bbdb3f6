"""Attention over quantized keys does not heed the padding of a batch.

Why
    The quantized batch caches of mlx-vlm 0.5.0 make their mask without left padding: rows
    attend to it as if it were tokens. Where there is a mask a row, of shape (rows, 1, queries,
    keys), quantized attention with grouped heads adds it to scores that have one axis more:
    rows line up with key-value heads. That fails, or, with as many heads as rows, gives each
    head another row's mask. And models that cut a mask to their keys, Gemma 3 and GLM-4V among
    them, ask packed keys for a shape, which a tuple does not have.
How
    The mask is the one that the release's ``BatchKVCache`` makes. Attention gets its mask with
    the axis that it lacks. The packed keys and values of a batch know their shape.
Upstream
    Masks: mlx-vlm 0.6.0. Cut masks: mlx-vlm 0.6.4. Grouped heads: mlx-lm 0.32.0, mlx-vlm 0.6.5.
Retire when
    No supported release is older than these.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def make_padded_mask(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """The mask that a batch in floats with the same padding would have."""
    batch = importlib.import_module("mlx_vlm.models.cache").BatchKVCache
    return batch.make_mask(cache, *args, **kwargs)


class Packed(tuple[Any, ...]):
    """Packed keys or values, with the shape of the floats that they stand for."""

    shape: tuple[int, ...]


def return_shapes(original: Callable[..., Any], cache: Any, keys: Any, values: Any) -> Any:
    """What a cache holds, with the shapes that models ask for."""
    held = original(cache, keys, values)
    return tuple(
        add_shape(part, floats.shape[-1]) for part, floats in zip(held, (keys, values), strict=True)
    )


def add_shape(parts: Any, width: int) -> Any:
    """Packed keys or values of heads that are this wide; anything else as it is."""
    if type(parts) is not tuple:
        return parts
    packed = Packed(parts)
    packed.shape = (*parts[0].shape[:-1], width)
    return packed


def attend_as_before(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The release's own attention."""
    return original(*args, **kwargs)


def attend(
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
        mask = add_group_axis(mask, groups)
    return original(queries, q_keys, q_values, scale, mask, *args, **kwargs)


def add_group_axis(mask: Any, groups: int) -> Any:
    """A mask (rows, heads or 1, queries, keys) for scores (rows, groups, heads in one, ...).

    One that serves every row and head broadcasts as it is.
    """
    rows, heads, *rest = mask.shape
    if rows == heads == 1:
        return mask
    return mask.reshape((rows, 1, 1, *rest) if heads == 1 else (rows, groups, -1, *rest))


def _make_mask(original: Any) -> Any:
    return around(make_padded_mask)(original)


def _shapes(original: Any) -> Any:
    return around(return_shapes)(original)


def _attention(original: Any) -> Any:
    fits_itself = "ndim" in inspect.unwrap(original).__code__.co_names
    return around(attend_as_before if fits_itself else attend)(original)


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
        Target(
            "mlx-vlm",
            "mlx_vlm.models.cache",
            "BatchQuantizedKVCache.update_and_fetch",
            _shapes,
            # The first is the same in releases whose models ask for no shape.
            ("BatchQuantizedKVCache.update_and_fetch", "BatchQuantizedKVCache.make_mask"),
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
