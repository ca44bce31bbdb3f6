"""Processes an image, and reads the options that the image processor gets."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, own_class_of, require_module


class Images:
    """An image processor that keeps its options."""

    def fetch_images(self, images: Any) -> Any:
        return images

    def __call__(self, images: Any, **options: Any) -> dict[str, Any]:
        self.options = options
        return {}


def probe(target: Target) -> Result:
    """Red if the image processor gets no option to return the rows and columns of tiles."""
    kind, images = own_class_of(target), Images()
    picture = require_module("PIL.Image").new("RGB", (8, 8))
    kind.__call__(SimpleNamespace(image_processor=images), images=[picture])
    asked = images.options.get("return_row_col_info")
    return Result(not asked, f"asked for rows and columns: {bool(asked)}")
