"""Llama 4 in mlx-vlm reads images stretched, and with features of other tiles.

Why: The image processor stretches an image to one of eight grids of tiles. The model was trained on
    any grid of up to 16 tiles, unstretched, with padding, followed by a tile of the whole image.
    The prompt has tokens of this last tile, so the features of one image shift into the next.
How: The grid and the tiles are computed like in transformers; the release's own method still turns
    a tile into pixels.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The image processor gives a prompt as many tiles as it has tokens for.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap

_PROCESSOR = "mlx_vlm.models.llama4.processing_llama4:Llama4ImageProcessor"


def choose_grid(call: Function, processor: Any, image_width: int, image_height: int) -> Any:
    """The smallest grid (rows, columns) that enlarges an image least, or else shrinks it least."""
    most = processor.max_patches
    scales = {
        (rows, columns): min(
            columns * processor.size / image_width, rows * processor.size / image_height
        )
        for rows in range(1, most + 1)
        for columns in range(1, most // rows + 1)
    }
    larger = [scale for scale in scales.values() if scale >= 1]
    best = min(larger) if larger else max(scales.values())
    grids = [grid for grid, scale in scales.items() if scale == best]
    return min(grids, key=lambda grid: grid[0] * grid[1])


def split_image(call: Function, processor: Any, image: Any, aspect_ratio: tuple[int, int]) -> Any:
    """The tiles of an image, by rows; if there are several, then the whole image."""
    from PIL import Image

    size, (rows, columns) = processor.size, aspect_ratio
    image = image.convert("RGB")
    width, height = columns * size, rows * size
    limits = min(max(image.width, size), width), min(max(image.height, size), height)
    canvas = Image.new("RGB", (width, height))
    fitted = fit_size(image.width, image.height, *limits)
    canvas.paste(image.resize(fitted, Image.Resampling.BILINEAR))
    tiles = [
        canvas.crop((left, top, left + size, top + size))
        for top in range(0, height, size)
        for left in range(0, width, size)
    ]
    whole = [image.resize((size, size), Image.Resampling.BILINEAR)]
    return tiles + whole if len(tiles) > 1 else tiles


def fit_size(width: int, height: int, widest: int, highest: int) -> tuple[int, int]:
    """The largest size (width, height) of an image within limits, not stretched."""
    across, down = widest / width, highest / height
    if across < down:
        return widest, max(1, min(int(height * across), highest))
    return max(1, min(int(width * down), widest)), highest


PATCH = Patch(
    id="llama4-tiles",
    every_model=True,
    wrong_solo="llama4",
    targets=(
        *wrap(f"{_PROCESSOR}._get_best_resolution", choose_grid),
        *wrap(f"{_PROCESSOR}._split_into_tiles", split_image),
    ),
)
