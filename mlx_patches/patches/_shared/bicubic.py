"""Bicubic interpolation with PyTorch's coefficient, without smoothing."""

from typing import Any

from ...core.verbs import mx

# The coefficient of cubic convolution in PyTorch.
_A = -0.75


def resize(table: Any, height: int, width: int) -> Any:
    """A table (rows, columns, width of features), resized bicubically to a grid."""
    rows, columns, features = table.shape
    tall = weigh(height, rows) @ table.reshape(rows, -1)
    wide = weigh(width, columns) @ tall.reshape(height, columns, features)
    return mx.contiguous(wide)


def weigh(count: int, size: int) -> Any:
    """The weights (count, size) of a table's places at each place of an axis of another length."""
    import numpy as np

    places = (np.arange(count) + 0.5) * size / count - 0.5
    first = np.floor(places).astype(int)
    weights = np.zeros((count, size), np.float32)
    for tap in range(-1, 3):
        column = np.clip(first + tap, 0, size - 1)
        np.add.at(weights, (np.arange(count), column), weigh_tap(np.abs(places - first - tap)))
    return mx.array(weights)


def weigh_tap(distance: Any) -> Any:
    """The weights of cubic convolution at distances of up to 2 places."""
    near = ((_A + 2) * distance - (_A + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * _A * distance - 4 * _A
    return near * (distance <= 1) + far * (distance > 1)
