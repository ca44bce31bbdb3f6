"""LLaVA-NeXT and Granite Vision in mlx-vlm read images wrongly.

Why: The processor gives an image as many image tokens as it has features. The embedding step
    replaces each of these tokens by a whole tile of features, and a tile of newlines follows the
    tiles: a prompt of 1,206 tokens becomes 3,486. It also leaves tiles in the order of the grid,
    includes features of the image's padding, and ignores every image but the first; a conversation
    with several is refused.
How: The tower gets the tiles of all images. Their features are arranged as in transformers: the
    whole image, then the rows of the grid without padding, each with a newline at its end. They
    replace the image tokens one by one. A conversation may have several images, as LLaVA's may.
Upstream: Not fixed in mlx-vlm 0.7.10. Releases up to 0.3.9, which drop the sizes of images, are not
    repaired.
Retire when: The embedding step inserts one feature per image token.
"""

import copy
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from ....core.verbs import Function, Patch, after, mx, refusal, result, wrap
from ..._shared.configs import FROM_DICT

FAMILIES = ("llava_next", "granite_vision")
# The grids of published folders, for configs that name none.
GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
# The attribute of a config that keeps the grids, which its class drops.
_KEPT = "_image_grids"


def keep_grids(config: Any, cls: Any, params: Any, /) -> Any:
    """The config object, with the grids that ``config.json`` names."""
    is_known = cls.__module__ in [f"mlx_vlm.models.{family}.config" for family in FAMILIES]
    if is_known and (grids := params.get("image_grid_pinpoints")):
        config._image_grids = grids
    return config


def embed_images(
    embed: Function, model: Any, input_ids: Any = None, pixel_values: Any = None, **kwargs: Any
) -> Any:
    """Embed a prompt whose image tokens the processor has already repeated."""
    sizes = kwargs.get("image_sizes")
    if pixel_values is None or sizes is None:
        return embed(model, input_ids, pixel_values, **kwargs)
    sizes = sizes.tolist() if hasattr(sizes, "tolist") else list(sizes)
    if (input_ids == model.config.image_token_index).sum().item() <= len(sizes):
        return embed(model, input_ids, pixel_values, **kwargs)
    grids = [find_grid(model.config, size) for size in sizes]
    view = copy.copy(model)  # the model itself keeps nothing of a request
    view._merge_input_ids_with_image_features = functools.partial(
        merge_features, model, sizes, grids
    )
    return embed(view, input_ids, join_tiles(pixel_values, grids), **kwargs)


def find_grid(config: Any, size: Sequence[int]) -> tuple[int, int]:
    """The rows and columns of tiles of an image (height, width)."""
    module = importlib.import_module("transformers.image_processing_utils")
    grids = getattr(config, _KEPT, None) or getattr(config, "image_grid_pinpoints", None) or GRIDS
    height, width = module.select_best_resolution(tuple(size), grids)
    edge = config.vision_config.image_size
    return height // edge, width // edge


def join_tiles(pixels: Any, grids: Sequence[tuple[int, int]]) -> Any:
    """Pixels (images, tiles, ...) as (1, tiles, ...), without padded tiles."""
    tiles = [one[: rows * columns + 1] for one, (rows, columns) in zip(pixels, grids, strict=True)]
    return mx.concatenate(tiles)[None]


def merge_features(
    model: Any,
    sizes: Sequence[Sequence[int]],
    grids: Sequence[tuple[int, int]],
    image_features: Any,
    inputs_embeds: Any,
    input_ids: Any,
) -> Any:
    """The embeddings of a prompt, with one image feature per image token.

    Args:
        image_features: (tiles, patches, width), followed by as many tiles of newlines.
    """
    parts: list[Any] = []
    start = 0
    for size, (rows, columns) in zip(sizes, grids, strict=True):
        end = start + 1 + rows * columns
        parts += arrange(image_features[start:end], size, rows, columns, model.image_newline)
        start = end
    features = mx.concatenate(parts).astype(inputs_embeds.dtype)
    is_image = (input_ids == model.config.image_token_index).reshape(-1).tolist()
    places = [place for place, image in enumerate(is_image) if image]
    if len(places) != len(features):
        raise refusal(ValueError(f"{len(places)} image tokens for {len(features)} features"))
    flat = inputs_embeds.reshape(-1, inputs_embeds.shape[-1])
    flat[mx.array(places)] = features
    return flat.reshape(inputs_embeds.shape)


def arrange(
    tiles: Any, size: Sequence[int], rows: int, columns: int, newline: Any
) -> Iterator[Any]:
    """The features (tokens, width) of an image: the whole image's, then the grid's by rows."""
    whole, *_ = tiles
    yield whole
    patches, width = whole.shape
    side = round(patches**0.5)
    grid = tiles[1:].reshape(rows, columns, side, side, width).swapaxes(1, 2)
    grid = remove_padding(grid.reshape(rows * side, columns * side, width), size)
    ends = mx.broadcast_to(newline.astype(grid.dtype), (grid.shape[0], 1, width))
    yield mx.concatenate([grid, ends], axis=1).reshape(-1, width)


def remove_padding(grid: Any, size: Sequence[int]) -> Any:
    """A grid (height, width, ...) without the padding that an image of another shape has."""
    height, width = grid.shape[:2]
    if size[1] / size[0] > width / height:
        padding = (height - int(round(size[0] * (width / size[1]), 7))) // 2
        return grid[padding : height - padding]
    padding = (width - int(round(size[1] * (height / size[0]), 7))) // 2
    return grid[:, padding : width - padding]


def allow_images(formatter: Any, /) -> None:
    """Let a conversation with LLaVA-NeXT or Llama 3.2 have several images, as with LLaVA."""
    if formatter.model_name in (FAMILIES[0], "mllama"):
        formatter.model_name = "llava"  # the format is chosen already


PATCH = Patch(
    id="llava-next-tiles",
    every_model=True,
    wrong_solo="llava_next",
    targets=(
        *wrap(
            [f"mlx_vlm.models.{one}.{one}:Model.get_input_embeddings" for one in FAMILIES],
            embed_images,
            fingerprint_of=(
                "Model.get_input_embeddings",
                "Model._merge_input_ids_with_image_features",
            ),
        ),
        *result(FROM_DICT[1:], keep_grids, supports=True),
        *after("mlx_vlm.prompt_utils:MessageFormatter.__init__", allow_images, supports=True),
    ),
)
