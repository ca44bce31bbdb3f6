"""Granite 4 Vision ignores all images of a prompt but the first.

Why: The embedding step reads only the pixels of the first image. Its features fill the first image
    tokens of the prompt, and the last feature is repeated for the tokens of the other images.
How: The tiles of all images are passed as the tiles of one image, without the padding of images
    with fewer tiles. Before the features are packed, they are split by image.
Upstream: Not fixed in mlx-vlm 0.7.10. transformers splits the tiles by image.
Retire when: The release reads every image of a prompt.
"""

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, argument, mx

MODULE = "mlx_vlm.models.granite4_vision.granite4_vision"


def join_images(model: Any, /, input_ids: Any, pixel_values: Any, image_sizes: Any) -> Any:
    """The pixels of a prompt, with the tiles of all its images as the tiles of one."""
    # The images of several prompts cannot be distinguished here.
    if image_sizes is None or pixel_values is None or input_ids.shape[0] > 1:
        return pixel_values
    return join_tiles(pixel_values, count_tiles(model, image_sizes))


def count_tiles(model: Any, sizes: Any) -> list[int]:
    """The number of tiles of each image, including the one of the whole image."""
    grid_shape = importlib.import_module(MODULE).get_anyres_image_grid_shape
    config = model.config
    edge = config.vision_config.image_size
    grids = (grid_shape(size, config.image_grid_pinpoints, edge) for size in sizes)
    return [high * wide + 1 for high, wide in grids]


def join_tiles(pixels: Any, counts: Sequence[int]) -> Any:
    """Pixels (images, tiles, ...) as (1, tiles, ...), with this many tiles of each image."""
    if len(counts) < 2 or len(pixels) != len(counts):
        return pixels
    tiles = [image[:count] for image, count in zip(pixels, counts, strict=True)]
    return mx.concatenate(tiles)[None]


def split_images(model: Any, /, image_features: Any, image_sizes: Any) -> Any:
    """The features of each image, if those of several images are joined."""
    if len(image_sizes) < 2 or len(image_features) != 1:
        return image_features
    return split_features(image_features[0], count_tiles(model, image_sizes))


def split_features(features: Any, counts: Sequence[int]) -> list[Any]:
    """Split features (tiles, ...) by image; leave them whole if the numbers of tiles differ."""
    if features.shape[0] != sum(counts):
        return [features]
    parts: list[Any] = mx.split(features, [*itertools.accumulate(counts)][:-1])
    return parts


PATCH = Patch(
    id="granite4-images",
    targets=(
        *argument(f"{MODULE}:Model.get_input_embeddings", "pixel_values", join_images),
        *argument(
            f"{MODULE}:Model._pack_and_unpad_image_features",
            "image_features",
            split_images,
            supports=True,
        ),
    ),
    changes_solo=True,
    probe="mlx_patches.probes.two_images:probe",
)
