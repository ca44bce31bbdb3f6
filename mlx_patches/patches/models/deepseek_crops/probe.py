"""Embeds a prompt with an image of several tiles, and records which crops are read."""

from typing import Any

from ....lab.image_scenarios import whole_of
from ....lab.whole import LAST
from ....probes.kit import Result, Target, mx, require_own, tiny_of


class Crops:
    """The crops of a prompt with one image; reading past it raises."""

    def __init__(self, sizes: Any):
        self.sizes, self.shape = sizes, (1, 1, 2)

    def __getitem__(self, place: Any) -> Any:
        """The prompt's crops, or the image's sizes; an IndexError past the image."""
        if isinstance(place, int):
            return [self.sizes][place:]
        return [[self.sizes]][place[0]][place[1]]

    def __mlx_array__(self) -> Any:
        return self.sizes[None, None]


def probe(target: Target) -> Result:
    """Red if the embedding step reads crops past the last image."""
    require_own(target)
    whole = whole_of(tiny_of(target))
    tokens = [1, 2, *whole.tokens, LAST]
    images = whole.images.inputs(tokens, [0])
    try:
        whole.module.get_input_embeddings(
            mx.array([tokens]), **{**images, "images_spatial_crop": Crops(mx.array([1, 1]))}
        )
    except IndexError:
        return Result(True, "crops are read past the last image")
    return Result(False, "only the image's own crops are read")
