"""Processes a white image of 20 by 12 pixels with tiles of 8 by 8."""

from ....probes.kit import Result, Target, module_of

WIDTH, HEIGHT, TILE = 20, 12, 8


def probe(target: Target) -> Result:
    """Red if the grid is not 2 by 3, the whole image is no tile, or the image is stretched."""
    from PIL import Image

    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    made = module_of(target).Llama4ImageProcessor(size=TILE).preprocess([image])
    pixels, (grid,) = made["pixel_values"], made["aspect_ratios"]
    rows, columns = grid
    white = int((pixels[: rows * columns, 0] > 0).sum())
    found = f"grid {rows}x{columns}, {len(pixels)} tiles, {white} pixels of the image in the grid"
    return Result((rows, columns, len(pixels), white) != (2, 3, 7, WIDTH * HEIGHT), found)
