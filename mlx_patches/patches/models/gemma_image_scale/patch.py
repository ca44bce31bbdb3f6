"""Gemma 3 and PaliGemma 2: image features are up to 1.6 times too large.

Why: The embedding step divides image features by the root of the text model's width, because the
    language model multiplies all embeddings by it. It reads the width from the config's top level,
    where published configs have none; the default, 2048, is the width of a single model. Gemma 3
    also multiplies by a rounded root.
How: The features are divided by the factor of the language model.
Upstream: Not fixed in mlx-vlm 0.7.10. transformers reads the text model's width.
Retire when: The embedding step reads the text model's width.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx


def square_root_of_gemma3(image_features: Any) -> float:
    """The square of what Gemma 3's language model multiplies its embeddings by."""
    return round_root(image_features.shape[-1]) ** 2


def round_root(width: int) -> float:
    """The root of a text model's width, as Gemma 3 rounds it."""
    root: float = mx.array(width**0.5, mx.bfloat16).item()
    return root


def scale_features(model: Any, image_features: Any, /) -> Any:
    """PaliGemma's image features (..., width) for a division by the root of another width."""
    ratio = divide_widths(model.config.hidden_size, image_features.shape[-1])
    return image_features if ratio == 1 else image_features * ratio**0.5


def divide_widths(read: int, own: int) -> float:
    """The width that the release reads, relative to the text model's own."""
    return read / own


PATCH = Patch(
    id="gemma-image-scale",
    every_model=True,
    wrong_solo="gemma3 paligemma",
    targets=(
        *argument(
            "mlx_vlm.models.gemma3.gemma3:Model.prepare_inputs_for_multimodal",
            "hidden_size",
            square_root_of_gemma3,
        ),
        *argument(
            "mlx_vlm.models.paligemma.paligemma:Model._prepare_inputs_for_multimodal",
            "image_features",
            scale_features,
        ),
    ),
)
