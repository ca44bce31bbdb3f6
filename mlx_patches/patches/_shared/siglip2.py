"""The tower of Siglip 2, which gets images of several sizes, padded to one number of places."""

from typing import Any

from ...core.verbs import Function, mx


def interpolate(resize: Function, positions: Any, spatial_shapes: Any, max_length: int) -> Any:
    """Positions (images, places, width) for images of these sizes, from a table (high, wide, _)."""
    rows = []
    for height, width in spatial_shapes.tolist():
        high = weigh(height, positions.shape[0]) @ positions.swapaxes(0, 1)
        both = weigh(width, positions.shape[1]) @ high.swapaxes(0, 1)
        row = both.reshape(height * width, -1)
        rows.append(mx.pad(row, [(0, max_length - len(row)), (0, 0)]))
    return mx.stack(rows).astype(positions.dtype)


def weigh(count: int, table: int) -> Any:
    """The weights (count, table) of a bilinear interpolation that smooths if it shrinks."""
    scale = table / count
    centers = (mx.arange(count) + 0.5) * scale - 0.5
    distance = mx.abs(mx.arange(table) - centers[:, None]) / max(scale, 1.0)
    weights = mx.maximum(1 - distance, 0)
    return weights / weights.sum(-1, keepdims=True)


def encode_apart(encode: Function, tower: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The tower's output for each image without its padding, which is zeros in the result."""
    if "pixel_attention_mask" in kwargs:  # a release that masks it
        return encode(tower, x, *args, **kwargs)
    images, shapes = [], kwargs.pop("spatial_shapes")
    for image, (height, width) in zip(x, shapes.tolist(), strict=True):
        count, shape = height * width, mx.array([[height, width]])
        states, _, last = encode(tower, image[None, :count], *args, spatial_shapes=shape, **kwargs)
        padding = [(0, 0), (0, x.shape[1] - count), (0, 0)]
        images.append([mx.pad(one, padding) for one in (*(states or ()), last)])
    *states, last = map(mx.concatenate, zip(*images, strict=True))
    return tuple(states), x, last
