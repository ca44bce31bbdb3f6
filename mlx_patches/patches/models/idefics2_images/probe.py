"""Embeds images of several shapes, and records which positions their patches get."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require_own

TOWER = "mlx_vlm.models.idefics2.vision"
# Positions per axis, and images (rows, columns of patches) padded to the largest.
SIZE = 7
IMAGES = ((5, 6), (3, 4), (7, 2))
ROWS, COLUMNS = 7, 6


def probe(target: Target) -> Result:
    """Red if a patch gets another position than the authors' rule gives."""
    require_own(target)  # a supporting target is needed if the positions are repaired
    module = import_module(TOWER)
    config = SimpleNamespace(hidden_size=1, num_channels=1, image_size=SIZE, patch_size=1)
    embeddings = module.VisionEmbeddings(config)
    embeddings.patch_embedding = lambda x: mx.zeros(x.shape)
    table = embeddings.position_embedding
    table.weight = mx.arange(SIZE**2).astype(mx.float32)[:, None]
    mask = mx.array(
        [[[y < h and x < w for x in range(COLUMNS)] for y in range(ROWS)] for h, w in IMAGES]
    )
    actual = embeddings(mx.zeros((len(IMAGES), ROWS, COLUMNS, 1)), mask=mask)[..., 0]
    wrong = sum(
        actual[number, y * COLUMNS + x].item() != place(y, height) * SIZE + place(x, width)
        for number, (height, width) in enumerate(IMAGES)
        for y in range(height)
        for x in range(width)
    )
    return Result(wrong > 0, f"{wrong} patches at other positions than the authors'")


def place(patch: int, count: int) -> Any:
    """The position of a patch: how many of the equal parts of the axis end before it."""
    return int(Fraction(patch, count) * SIZE)
