"""Embeds two images of several tiles, whose features name their tile and patch."""

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import make_module, own_class_of, require_own

IMAGE, NEWLINE = 9, -1.0
# The length of a tile's edge in pixels and in patches, and the width of features.
EDGE, SIDE, WIDTH = 8, 4, 2
# Two images (height, width) on grids of two tiles, in units of a tile's edge.
IMAGES = ((1.0, 2.0), (2.0, 0.5))


def probe(target: Target) -> Result:
    """Red if the embeddings differ from the authors' arrangement of the features."""
    require_own(target)
    if target.supports:  # it keeps what the embedding step reads
        target = target._replace(module="mlx_vlm.models.llava_next.llava_next", name="Model")
    import mlx.core as mx

    model_class = own_class_of(target)
    accepted = inspect.signature(inspect.unwrap(model_class.get_input_embeddings)).parameters
    if not {"image_sizes", "kwargs"} & set(accepted):
        raise NotApplicable("this release's embeddings of images do not depend on their sizes")
    model = build_model(model_class)
    names = [name for number, shape in enumerate(IMAGES) for name in arrange(number, shape)]
    ids = mx.array([[1, *[IMAGE] * len(names), 2]])
    # Each tile's pixels name it.
    tiles = mx.arange(6).reshape(2, 3, 1, 1, 1) * mx.ones((1, 1, 3, EDGE, EDGE))
    sizes = mx.array([[int(EDGE * high), int(EDGE * wide)] for high, wide in IMAGES])
    made = model.get_input_embeddings(ids, tiles, image_sizes=sizes).inputs_embeds
    received = made[0, 1:-1, 0].tolist()
    return Result(
        made.shape[1] != ids.shape[1] or received != names,
        f"{made.shape[1]} embeddings for {ids.shape[1]} tokens",
    )


def build_model(model_class: Any) -> Any:
    """A model without weights, whose tower's features are numbers of tiles and patches."""
    import mlx.core as mx

    def call_tower(pixels: Any, output_hidden_states: bool = False) -> Any:
        features = pixels[:, :1, 0, :1] + mx.arange(SIDE**2)[None, :, None] / 100
        return pixels, [mx.broadcast_to(features, (*features.shape[:2], WIDTH))]

    grids = [[EDGE, 2 * EDGE], [2 * EDGE, EDGE]]
    language = SimpleNamespace(embed_tokens=lambda ids: mx.zeros((*ids.shape, WIDTH)))
    return make_module(
        model_class,
        config=SimpleNamespace(
            image_token_index=IMAGE,
            image_grid_pinpoints=grids,
            vision_config=SimpleNamespace(image_size=EDGE),
        ),
        language_model=SimpleNamespace(model=language),
        vision_tower=call_tower,
        multi_modal_projector=lambda features: features,
        vision_feature_layer=0,
        vision_feature_select_strategy="full",
        image_newline=mx.full((WIDTH,), NEWLINE),
    )


def arrange(number: int, shape: tuple[float, float]) -> list[float]:
    """The features of an image in the authors' order, computed on paper."""
    first = 3 * number
    whole = [value(first, patch) for patch in range(SIDE**2)]
    rows: list[float] = []
    high, wide = (2, 1) if shape[0] > shape[1] else (1, 2)
    used = round(shape[1] / shape[0] * high * SIDE) if shape[0] > shape[1] else wide * SIDE
    padding = (wide * SIDE - used) // 2
    for y in range(high * SIDE):
        for x in range(padding, wide * SIDE - padding):
            tile = first + 1 + (y // SIDE) * wide + x // SIDE
            rows.append(value(tile, (y % SIDE) * SIDE + x % SIDE))
        rows.append(NEWLINE)
    return whole + rows


def value(tile: int, patch: int) -> float:
    """The feature of a patch, in single precision."""
    numpy = importlib.import_module("numpy")
    return float(numpy.float32(tile) + numpy.float32(patch) / numpy.float32(100))
