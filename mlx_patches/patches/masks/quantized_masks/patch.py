"""mlx-lm and mlx-vlm with kv_bits: rows of a batch attend to padding, or crash.

Why: The quantized batch caches of mlx-vlm 0.5.0 ignore left padding in their mask: rows attend to
    padding as if it were tokens. If each row has a mask, (rows, 1, queries, keys), quantized
    attention with grouped heads adds it to scores with one axis more, and rows are aligned with
    key-value heads: it raises or, with as many heads as rows, uses another row's mask for each
    head. Models that cut a mask to their keys, Gemma 3 and GLM-4V among them, read the shape of the
    packed keys, but a tuple has none.
How: The mask is the one that the release's ``BatchKVCache`` makes. Attention gets it with the
    missing axis. The packed keys and values of a batch get a ``shape``.
Upstream: Masks: mlx-vlm 0.6.0. Cut masks: mlx-vlm 0.6.4. Grouped heads: mlx-lm 0.32.0, mlx-vlm
    0.6.5.
Retire when: No supported release is older than these.
"""

import importlib
import inspect
from typing import Any

from ....core.verbs import Function, Patch, around, define, everywhere, wrap


def make_padded_mask(original: Function, cache: Any, *args: Any, **kwargs: Any) -> Any:
    """The mask that a float batch with the same padding would have."""
    batch = importlib.import_module("mlx_vlm.models.cache").BatchKVCache
    return batch.make_mask(cache, *args, **kwargs)


class Packed(tuple[Any, ...]):
    """Packed keys or values, with the shape of the floats that they stand for."""

    shape: tuple[int, ...]


def return_shapes(original: Function, cache: Any, keys: Any, values: Any) -> Any:
    """Update a cache, and return its keys and values with the ``shape`` that models read."""
    held = original(cache, keys, values)
    return tuple(
        add_shape(part, floats.shape[-1]) for part, floats in zip(held, (keys, values), strict=True)
    )


def add_shape(parts: Any, width: int) -> Any:
    """Packed keys or values with the shape of heads of this width; any other value unchanged."""
    if type(parts) is not tuple:
        return parts
    packed = Packed(parts)
    packed.shape = (*parts[0].shape[:-1], width)
    return packed


def attend_as_before(original: Function, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def attend(
    original: Function,
    queries: Any,
    q_keys: Any,
    q_values: Any,
    scale: Any,
    mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run attention with a mask that has an axis for the heads of a group."""
    groups = q_keys[0].shape[-3]
    if getattr(mask, "ndim", 0) == 4 and queries.shape[1] != groups:
        mask = add_group_axis(mask, groups)
    return original(queries, q_keys, q_values, scale, mask, *args, **kwargs)


def add_group_axis(mask: Any, groups: int) -> Any:
    """A mask (rows, heads or 1, queries, keys) for scores (rows, groups, heads per group, ...).

    A mask shared by all rows and heads broadcasts as it is.
    """
    rows, heads, *rest = mask.shape
    if rows == heads == 1:
        return mask
    return mask.reshape((rows, 1, 1, *rest) if heads == 1 else (rows, groups, -1, *rest))


def _attention(original: Any) -> Any:
    fits_itself = "ndim" in inspect.unwrap(original).__code__.co_names
    return around(attend_as_before if fits_itself else attend)(original)


PATCH = Patch(
    id="quantized-masks",
    targets=(
        *wrap(
            (
                "mlx_vlm.models.cache:BatchQuantizedKVCache.make_mask",
                "mlx_vlm.turboquant:BatchTurboQuantKVCache.make_mask",
            ),
            make_padded_mask,
        ),
        *wrap(
            "mlx_vlm.models.cache:BatchQuantizedKVCache.update_and_fetch",
            return_shapes,
            # Only ``update_and_fetch`` is the same in releases whose models read no shape.
            fingerprint_of=(
                "BatchQuantizedKVCache.update_and_fetch",
                "BatchQuantizedKVCache.make_mask",
            ),
        ),
        *define(everywhere("models.base:quantized_scaled_dot_product_attention"), _attention),
    ),
)
