"""Processes two images of different sizes."""

from __future__ import annotations

from ....probes.kit import Result, Target, module_of

SIZES = ((64, 32), (32, 96))


def probe(target: Target) -> Result:
    """Red if the images are refused, or if they have other grids than each by itself."""
    from PIL import Image

    process = module_of(target).ImageProcessor(min_pixels=784, max_pixels=12544).preprocess
    images = [Image.new("RGB", size) for size in SIZES]
    wanted = [process([image])["image_grid_thw"][0].tolist() for image in images]
    grids = process(images)["image_grid_thw"].tolist()
    return Result(grids != wanted, f"grids {grids} instead of {wanted}")
