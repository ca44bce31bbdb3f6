"""Granite 4 Vision sees only the first image of a prompt.

Why
    The embedding step reads the pixels of the first image alone. Its features go to the first
    image tokens of the prompt, and the last of them to each token of the other images.
How
    The tiles of all images are handed over as those of one image, without the padding of images
    with fewer tiles. Before the features are packed they are split into those of each image.
Upstream
    Not mended in 0.7.10. transformers splits the tiles by image.
Retire when
    The release reads every image of a prompt.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around

MODULE = "mlx_vlm.models.granite4_vision.granite4_vision"


def embed_all(
    embed: Callable[..., Any],
    model: Any,
    input_ids: Any = None,
    pixel_values: Any = None,
    **kwargs: Any,
) -> Any:
    """Embed a prompt with the tiles of all its images, as if they were of one."""
    sizes = kwargs.get("image_sizes")
    # The images of several prompts are not told apart here.
    if sizes is not None and pixel_values is not None and input_ids.shape[0] == 1:
        pixel_values = as_one_image(pixel_values, count_tiles(model, sizes))
    return embed(model, input_ids, pixel_values, **kwargs)


def count_tiles(model: Any, sizes: Any) -> list[int]:
    """The number of tiles of each image, with the one that shows it whole."""
    grid_shape = importlib.import_module(MODULE).get_anyres_image_grid_shape
    config = model.config
    edge = config.vision_config.image_size
    grids = (grid_shape(size, config.image_grid_pinpoints, edge) for size in sizes)
    return [high * wide + 1 for high, wide in grids]


def as_one_image(pixels: Any, counts: Sequence[int]) -> Any:
    """Pixels (images, tiles, ...) as (1, tiles, ...), of each image as many tiles as it has."""
    if len(counts) < 2 or len(pixels) != len(counts):
        return pixels
    import mlx.core as mx

    tiles = [image[:count] for image, count in zip(pixels, counts, strict=True)]
    return mx.concatenate(tiles)[None]


def pack_each(
    pack: Callable[..., Any], model: Any, image_features: Any, image_sizes: Any, *rest: Any
) -> Any:
    """Pack features, where those of all images are given as of one."""
    if len(image_sizes) > 1 and len(image_features) == 1:
        (features,) = image_features
        image_features = split(features, count_tiles(model, image_sizes))
    return pack(model, image_features, image_sizes, *rest)


def split(features: Any, counts: Sequence[int]) -> list[Any]:
    """Features (tiles, ...) as those of each image; as one if the tiles are not theirs."""
    if features.shape[0] != sum(counts):
        return [features]
    import mlx.core as mx

    parts: list[Any] = mx.split(features, [*itertools.accumulate(counts)][:-1])
    return parts


PATCH = Patch(
    id="granite4-images",
    summary="Granite 4 Vision ignores all images of a prompt but the first",
    targets=(
        Target("mlx-vlm", MODULE, "Model.get_input_embeddings", around(embed_all)),
        Target(
            "mlx-vlm",
            MODULE,
            "Model._pack_and_unpad_image_features",
            around(pack_each),
            supports=True,
        ),
    ),
    changes_alone=True,
)
