"""DeepSeek-VL and GOT-OCR in mlx-vlm: two images of a prompt drop the text between them, or raise.

Why: DeepSeek-VL's model takes the first two image tokens of a prompt for its two images, and drops
    all text up to the last one. It expands only the first of several placeholders. The hybrid
    tower resizes one image only, and prompts of a batch become one. GOT-OCR's model gives each
    prompt of a batch the features of one image.
How: Every placeholder is expanded that the processor did not expand, and each image token gets the
    next feature, in the order of the prompts. The hybrid tower is called once per image.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: Both models place the features of several images at their tokens.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, argument, mx, result, wrap


def find_placeholders(input_ids: Any, image_token_index: int, num_image_tokens: int) -> Any:
    """The place of each placeholder that stands for a whole image, as (places, 1)."""
    places = (input_ids.reshape(-1) == image_token_index).nonzero()[0]
    return places[: len(places) if len(places) % num_image_tokens else 0, None]


def split_rows(embedded: Any, model: Any, /, input_ids: Any) -> Any:
    """The embeddings of a batch of prompts, which the model joined to one row."""
    rows = len(input_ids)
    if not hasattr(embedded, "inputs_embeds"):  # before mlx-vlm 0.3.10
        return split_row(embedded, rows)
    embedded.inputs_embeds = split_row(embedded.inputs_embeds, rows)
    return embedded


def split_row(features: Any, rows: int) -> Any:
    """Features (1, tokens, width) as those of several rows."""
    is_joined = len(features) < rows
    return features.reshape(rows, -1, features.shape[-1]) if is_joined else features


def place_features(
    merged: Any, model: Any, /, image_features: Any, inputs_embeds: Any, input_ids: Any
) -> Any:
    """The embeddings of a prompt whose image tokens have the features of several images."""
    is_image = input_ids == model.config.image_token_index
    features = image_features.flatten(0, 1)
    if len(image_features) == 1 or is_image.sum().item() != len(features):
        return merged
    places = mx.maximum(mx.cumsum(is_image.reshape(-1)) - 1, 0).reshape(is_image.shape)
    return mx.where(is_image[..., None], features[places], inputs_embeds)


def call_per_image(call: Function, tower: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The features of a tower, called once per image if it has two parts."""
    if len(x) == 1 or tower.config.cls != "HybridVisionTower":
        return call(tower, x, *args, **kwargs)
    parts = [call(tower, x[at : at + 1], *args, **kwargs) for at in range(len(x))]
    return tuple(mx.concatenate(part) for part in zip(*parts, strict=True))


def merge_by_row(
    merge: Function, image_token_id: int, image_features: Any, inputs_embeds: Any, input_ids: Any
) -> Any:
    """The embeddings of prompts; each has the features of as many images as its tokens need."""
    features = image_features.flatten(0, 1)
    counts = (input_ids == image_token_id).sum(axis=1).tolist()
    if sum(counts) != len(features) or is_one_per_row(counts, image_features):
        return merge(image_token_id, image_features, inputs_embeds, input_ids)
    rows, start = [], 0
    for row, count in enumerate(counts):
        own = features[None, start : start + count]
        at = slice(row, row + 1)
        rows.append(merge(image_token_id, own, inputs_embeds[at], input_ids[at]))
        start += count
    return mx.concatenate(rows)


def is_one_per_row(counts: Sequence[int], image_features: Any) -> bool:
    images, tokens, _ = image_features.shape
    return len(counts) == images and set(counts) == {tokens}


_DEEPSEEK = "mlx_vlm.models.multi_modality"

PATCH = Patch(
    id="several-images",
    every_model=True,
    changes_solo=True,
    targets=(
        *argument(
            f"{_DEEPSEEK}.multi_modality:Model.add_image_token", "image_indices", find_placeholders
        ),
        *result(f"{_DEEPSEEK}.multi_modality:Model.get_input_embeddings", split_rows),
        *result(
            f"{_DEEPSEEK}.multi_modality:Model._merge_input_ids_with_image_features",
            place_features,
        ),
        *wrap(f"{_DEEPSEEK}.vision:VisionModel.__call__", call_per_image),
        *wrap("mlx_vlm.models.got.got:Model.merge_input_ids_with_image_features", merge_by_row),
    ),
)
