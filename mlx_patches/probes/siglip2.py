"""Runs a release's tower of Siglip 2 with tiny sizes."""

import inspect
from typing import Any

from ..core.verbs import mx
from .kit import Result

# A table of positions has this many rows and columns; an image's first patches are real.
SIDE, REAL = 4, 2


def probe_positions(vision: Any) -> Result:
    """Red if a table shrunk to half is not the mean that smooths with a triangle."""
    table = mx.arange(SIDE**2).astype(mx.float32).reshape(SIDE, SIDE, 1) ** 2
    resize = vision.VisionEmbeddings.resize_positional_embeddings
    found = resize(table, mx.array([[1, SIDE]]), SIDE)[0, :, 0]
    taps = mx.array([5.0, 7.0, 7.0, 5.0]) / 24
    off = mx.abs(found - taps @ table[..., 0]).max().item()
    return Result(off > 1e-3, f"the positions are off by {off:.2g}", off)


def probe_padding(tower: Any, patch_size: int) -> Result:
    """Red if an image's output differs from that of the same image without padding."""
    mx.random.seed(0)
    pixels, shapes = mx.random.normal((1, SIDE, 3 * patch_size**2)), mx.array([[1, REAL]])
    known = inspect.signature(type(tower).__call__).parameters
    found = []
    for part in (pixels[:, :REAL], pixels):
        mask = {"pixel_attention_mask": mx.arange(part.shape[1])[None] < REAL}
        given = {name: value for name, value in mask.items() if name in known}
        states, _, last = tower(part, True, spatial_shapes=shapes, **given)
        found.append(mx.concatenate([*states, last])[:, :REAL])
    off = mx.abs(found[0] - found[1]).max().item()
    return Result(off > 1e-5, f"padding changes an image by {off:.2g}", off)
