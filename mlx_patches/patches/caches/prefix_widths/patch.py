"""mlx-vlm: the prefix cache crashes for models whose keys and values differ in width.

Why: If the prompts of a batch have cached prefixes of different lengths, or some have none, the
    shorter ones are padded with zeros. The padding has the shape of the first layer's keys, in
    every layer and also for the values. If a model's keys are wider than its values (latent
    attention: DeepSeek V2, Kimi-VL, MiniCPM3), or its layers differ (Nemotron-NAS), the arrays
    cannot be joined, and every request of the batch fails.
How: The release builds the caches once per shape, with placeholders of that shape for the other
    arrays; placeholders are never computed. Each layer takes its keys and its values from the
    caches of their shape. Nothing changes for models with a single shape.
Upstream: Not fixed in mlx-vlm 0.5.0 to 0.7.10.
Retire when: ``make_warm_batch_kv_cache_multi`` pads each layer's keys and values in their own
    shapes.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ....core.verbs import Patch, mx, wrap

# A prompt's prefix: the keys and values of each layer.
Tensors = list[tuple[Any, Any]]
# The number of heads, and the width.
Shape = tuple[int, int]


def build_by_shape(
    make: Callable[..., tuple[list[Any], int]],
    picks: Sequence[dict[str, Any] | None],
    num_layers: int,
    *args: Any,
    **kwargs: Any,
) -> tuple[list[Any], int]:
    """Build the caches of prompts with and without a prefix; see the release's function."""
    prefixes = [read_prefix(pick, num_layers) if pick else None for pick in picks]
    sample = next((one for one in prefixes if one), None)
    shapes = [(get_shape(keys), get_shape(values)) for keys, values in sample or ()]
    kinds = dict.fromkeys(shape for pair in shapes for shape in pair)
    if len(kinds) < 2:
        return make(picks, num_layers, *args, **kwargs)
    made: dict[Shape, list[Any]] = {}
    for shape in kinds:
        views = [
            pick and one and make_prefix_view(pick, one, shape)
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


def read_prefix(pick: dict[str, Any], layers: int) -> Tensors:
    """Each layer's keys and values of a prefix, of shape ``(1, heads, length, width)``."""
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


def get_shape(tensor: Any) -> Shape:
    return tensor.shape[1], tensor.shape[-1]


def make_prefix_view(pick: dict[str, Any], tensors: Tensors, shape: Shape) -> dict[str, Any]:
    """A prefix in one block; arrays of other shapes are replaced by placeholders of this one."""

    def fit(tensor: Any) -> Any:
        if get_shape(tensor) == shape:
            return tensor
        return mx.zeros((1, shape[0], tensor.shape[2], shape[1]), tensor.dtype)

    block = SimpleNamespace(
        keys=[fit(keys) for keys, _ in tensors], values=[fit(values) for _, values in tensors]
    )
    return {**pick, "warm_cache": None, "matched_blocks": [block]}


PATCH = Patch(
    id="vlm-prefix-widths",
    formerly="prefix-widths",
    severity="crash",
    targets=wrap("mlx_vlm.apc:make_warm_batch_kv_cache_multi", build_by_shape),
)
