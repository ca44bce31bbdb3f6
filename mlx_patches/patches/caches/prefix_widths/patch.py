"""mlx-vlm's prefix cache fails for models whose keys and values differ in heads or width.

Why
    Prompts of a batch that begin with cached prefixes of different length, or without one, are
    filled up with zeros. Their shape is that of the first layer's keys, for the values and for
    every layer. Where a model's keys are wider than its values (latent attention: DeepSeek V2,
    Kimi-VL, MiniCPM3), or its layers differ (Nemotron-NAS), the arrays cannot be joined, and all
    requests of the batch fail.
How
    The release builds the caches once for each shape, from arrays of this shape in the place of
    the others, which are never computed. Each layer takes its keys and its values from the caches
    of their shape. Models with one shape are not touched.
Upstream
    mlx-vlm 0.5.0 to 0.7.10, not fixed.
Retire when
    ``make_warm_batch_kv_cache_multi`` fills up each layer's keys and values by their own shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ....core.patch import Patch, Target, around

# A prompt's prefix: each layer's keys and values.
Tensors = list[tuple[Any, Any]]
# The number of heads, and the width.
Shape = tuple[int, int]


def fill_by_shape(
    make: Callable[..., tuple[list[Any], int]],
    picks: Sequence[dict[str, Any] | None],
    num_layers: int,
    *args: Any,
    **kwargs: Any,
) -> tuple[list[Any], int]:
    """Build the caches of prompts with and without a prefix; see the release's function."""
    prefixes = [tensors_of(pick, num_layers) if pick else None for pick in picks]
    sample = next((one for one in prefixes if one), None)
    shapes = [(shape_of(keys), shape_of(values)) for keys, values in sample or ()]
    kinds = dict.fromkeys(shape for pair in shapes for shape in pair)
    if len(kinds) < 2:
        return make(picks, num_layers, *args, **kwargs)
    made: dict[Shape, list[Any]] = {}
    for shape in kinds:
        views = [
            pick and one and as_if_of_shape(pick, one, shape)
            for pick, one in zip(picks, prefixes, strict=True)
        ]
        made[shape], longest = make(views, num_layers, *args, **kwargs)
    caches = []
    for layer, (keys, values) in enumerate(shapes):
        cache = made[keys][layer]
        if values != keys:
            cache.values = made[values][layer].values
        caches.append(cache)
    return caches, longest


def tensors_of(pick: dict[str, Any], layers: int) -> Tensors:
    """Each layer's keys and values of a prefix, of shape ``(1, heads, length, width)``."""
    import mlx.core as mx

    length = pick["prefix_len"]
    if (caches := pick.get("warm_cache")) is not None:
        return [(one.keys[..., :length, :], one.values[..., :length, :]) for one in caches[:layers]]
    blocks = pick["matched_blocks"]
    return [
        (
            mx.concatenate([one.keys[layer] for one in blocks], axis=2),
            mx.concatenate([one.values[layer] for one in blocks], axis=2),
        )
        for layer in range(layers)
    ]


def shape_of(tensor: Any) -> Shape:
    """A layer's heads and width."""
    return tensor.shape[1], tensor.shape[-1]


def as_if_of_shape(pick: dict[str, Any], tensors: Tensors, shape: Shape) -> dict[str, Any]:
    """A prefix in one block, with an array of this shape in the place of each of another one."""
    import mlx.core as mx

    def fitting(tensor: Any) -> Any:
        if shape_of(tensor) == shape:
            return tensor
        return mx.zeros((1, shape[0], tensor.shape[2], shape[1]), tensor.dtype)

    block = SimpleNamespace(
        keys=[fitting(keys) for keys, _ in tensors],
        values=[fitting(values) for _, values in tensors],
    )
    return {**pick, "warm_cache": None, "matched_blocks": [block]}


PATCH = Patch(
    id="vlm-prefix-widths",
    formerly="prefix-widths",
    every_model=True,
    summary="mlx-vlm: the prefix cache crashes for models whose keys and values differ in width",
    severity="crash",
    targets=(
        Target("mlx-vlm", "mlx_vlm.apc", "make_warm_batch_kv_cache_multi", around(fill_by_shape)),
    ),
)
