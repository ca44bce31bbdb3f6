"""Kimi and LocateAnything in mlx-vlm: the patches of an image get inexact positions.

Why: The table of position embeddings is resized to an image's grid with ``bicubic_interpolate``,
    which leaves out the places beyond an edge. PyTorch, and so the authors, repeat the edge's.
    Before 0.6, the coefficient is -0.5 instead of -0.75, too.
How: A table that is resized without smoothing is interpolated as in PyTorch.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: ``bicubic_interpolate`` repeats the places at the edges.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, mx, result
from ..._shared.bicubic import resize


def interpolate(_: Any, /, x: Any, size: Sequence[int]) -> Any:
    """Images (rows, channels, height, width) in another size."""
    rows, channels, *old = x.shape
    table = x.astype(mx.float32).reshape(rows * channels, *old).transpose(1, 2, 0)
    grid = resize(table, *map(int, size))
    return grid.transpose(2, 0, 1).reshape(rows, channels, *size).astype(x.dtype)


def is_plain(size: Any, align_corners: Any, antialias: Any) -> bool:
    """Whether nothing is smoothed, and corners are not aligned."""
    return size is not None and not align_corners and not antialias


PATCH = Patch(
    id="kimi-positions",
    every_model=True,
    wrong_solo="kimi_k25 kimi_vl locateanything",
    targets=result("mlx_vlm.models.kernels:bicubic_interpolate", interpolate, when=is_plain),
)
