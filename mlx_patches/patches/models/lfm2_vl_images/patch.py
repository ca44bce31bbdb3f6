"""LFM2-VL in mlx-vlm before 0.7.2: wrong images; several in a prompt crash; large ones are blurred.

Why: The tower interpolates its positions bicubically, attends to the padding of smaller images, and
    normalizes at the end with another constant. The processor writes the first image's number of
    tokens for each image of a prompt, and makes large images small instead of tiling them. Before
    0.6 it is Siglip 2's, which resizes images to other sizes.
How: Each image runs through the tower without padding, with positions interpolated as in
    transformers. The processor receives a large image as its tiles and the whole, in a prompt that
    names them, and learns the grid of each. Before 0.6, which needs torchvision for images,
    transformers' own processor is used.
Upstream: mlx-vlm 0.7.2.
Retire when: No supported release is older than mlx-vlm 0.7.2.
"""

import itertools
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

from ....core.verbs import Function, Patch, after, result, wrap
from ..._shared.siglip2 import encode_apart, interpolate

MODEL = "mlx_vlm.models.lfm2_vl"
_PROCESSING = f"{MODEL}.processing_lfm2_vl"
# The image processor that releases have since 0.6.
NUMPY = "Lfm2VlNumpyImageProcessor"
# What published folders have: the width of a tile, and how many an image may have.
TILE, FEWEST, MOST = 512, 2, 10
# An image is large if it has more pixels than this many tiles.
LARGE = 2.0
# The width of a token's part of an image.
_STEP = 32


def set_constant(tower: Any, config: Any, /) -> None:
    tower.post_layernorm.eps = config.layer_norm_eps


def name_grids(made: Any, images: Any) -> Any:
    """The processed images, with the grid of each, in the lists of ``images``."""
    if "image_rows" in made or not isinstance(images, (list, tuple)):  # a single image
        return made
    grids = iter(made["spatial_shapes"].tolist())
    nested = [[next(grids) for _ in sample] for sample in images if isinstance(sample, list)]
    if nested:
        made["image_rows"] = [[high for high, _ in sample] for sample in nested]
        made["image_cols"] = [[wide for _, wide in sample] for sample in nested]
        made["image_sizes"] = [[high * wide for high, wide in sample] for sample in nested]
    return made


def change_processor(processor: Any, model_path: Any) -> Any:
    """LFM2-VL's processor with tiles or transformers' code; one that tiles is unchanged."""
    kind, module = type(processor), cast(Any, sys.modules.get(_PROCESSING))
    if kind is not getattr(module, "Lfm2VlProcessor", None) or hasattr(module, "_get_grid_layout"):
        return processor
    change = process_tiles if hasattr(module, NUMPY) else process_as_authors
    if change is process_as_authors:
        images: Any = import_module("transformers.models.auto.image_processing_auto")
        processor.image_processor = images.AutoImageProcessor.from_pretrained(model_path)

    def call(self: Any, images: Any = None, text: Any = None, **kwargs: Any) -> Any:
        if images is None or text is None:
            return kind.__call__(self, images, text, **kwargs)
        return change(kind.__call__, self, images, text, **kwargs)

    processor.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    return processor


def process_as_authors(
    call: Function, processor: Any, images: Any, text: Any, **kwargs: Any
) -> Any:
    """Process prompts by transformers' code, which needs torchvision."""
    kwargs |= {"return_tensors": "pt", "return_row_col_info": True}
    module: Any = import_module(_PROCESSING)
    made = module._original_call(processor, images=images, text=text, **kwargs)
    return type(made)({name: value.numpy() for name, value in made.items()})


def process_tiles(call: Function, processor: Any, images: Any, text: Any, **kwargs: Any) -> Any:
    """Process prompts in which a large image is several: its tiles, then the whole."""
    if not kwargs.pop("use_image_special_tokens", True):
        return call(processor, images, text, use_image_special_tokens=False, **kwargs)
    nest = import_module("transformers.image_utils").make_nested_list_of_images
    samples = nest(processor.image_processor.fetch_images(images))
    prompts, parts = [], []
    for prompt, sample in zip([text] if isinstance(text, str) else text, samples, strict=True):
        cut = prompt.split(processor.image_token)
        if len(cut) != len(sample) + 1:
            return call(processor, images, text, **kwargs)  # it raises
        tiles = [tile(image) for image in sample]
        parts.append([part for pair in tiles for part in pair[1]])
        written = [write_tiles(processor, grid) for grid, _ in tiles]
        prompts.append("".join(map("".join, zip(cut, [*written, ""], strict=True))))
    # With transformers 5.24 the release finds it nowhere else.
    own = {**kwargs.pop("text_kwargs", {}), "use_image_special_tokens": False}
    return call(processor, parts, prompts, text_kwargs=own, **kwargs)


def write_tiles(processor: Any, grid: tuple[int, int]) -> str:
    """The tokens of an image with this grid of tiles (rows, columns)."""
    image, (rows, columns) = processor.image_token, grid
    whole = image
    if rows * columns > 1:
        places = itertools.product(range(1, rows + 1), range(1, columns + 1))
        named = "".join(f"<|img_row_{row}_col_{column}|>{image}" for row, column in places)
        thumbnail = getattr(processor, "image_thumbnail_token", "<|img_thumbnail|>")
        whole = f"{named}{thumbnail}{image}"
    return f"{processor.image_start_token}{whole}{processor.image_end_token}"


def tile(image: Any) -> tuple[tuple[int, int], Sequence[Any]]:
    """An image's grid of tiles (rows, columns), its tiles, and the image itself."""
    width, height = image.size
    if round(width / _STEP) * round(height / _STEP) * _STEP**2 <= LARGE * TILE**2:
        return (1, 1), [image]
    columns, rows = find_grid(width, height)
    whole = image.convert("RGB").resize((columns * TILE, rows * TILE), 2)  # bilinear
    boxes = (
        (column * TILE, row * TILE, (column + 1) * TILE, (row + 1) * TILE)
        for row, column in itertools.product(range(rows), range(columns))
    )
    return (rows, columns), [*map(whole.crop, boxes), image]


def find_grid(width: int, height: int) -> tuple[int, int]:
    """The grid of tiles (columns, rows) whose shape is nearest to the image's.

    Of equal ones the last that the image fills by half.
    """
    sides = range(1, MOST + 1)
    grids = sorted(
        (one for one in itertools.product(sides, sides) if FEWEST <= one[0] * one[1] <= MOST),
        key=lambda one: one[0] * one[1],
    )
    off = [abs(width / height - columns / rows) for columns, rows in grids]
    best, *others = (one for one, far in zip(grids, off, strict=True) if far == min(off))
    for columns, rows in others:
        if width * height > 0.5 * TILE**2 * columns * rows:
            best = (columns, rows)
    return best


PATCH = Patch(
    id="lfm2-vl-images",
    wrong_solo="lfm2_vl",
    targets=(
        *wrap(f"{MODEL}.vision:VisionEmbeddings.resize_positional_embeddings", interpolate),
        *wrap(f"{MODEL}.vision:VisionModel.__call__", encode_apart),
        *after(f"{MODEL}.vision:VisionModel.__init__", set_constant),
        *result(f"{_PROCESSING}:{NUMPY}.preprocess", name_grids),
        *result("mlx_vlm.utils:load_processor", change_processor, supports=True),
    ),
)
