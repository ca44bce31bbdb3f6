"""PaliGemma ignores all images of a prompt but the first, and any image that follows text.

Why: The vision tower's encoder returns the states of only its first image. The tokens of the other
    images are embedded as zeros. A feature replaces the prompt's token of the same place, so
    images after a text or padding get other features, or zeros.
    Its prompts attend both ways, so a chunk would miss the tokens after it; releases up to 0.6 cut
    them all the same.
How: The encoder returns the states of all images, joined as those of one. Features are moved to
    the places of the image tokens. ``generate_step`` reads a prompt with images in one chunk.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The encoder returns every image.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx, result
from ..._shared.targets import vlm_generators


def join_images(encoded: Any, encoder: Any, x: Any, /) -> Any:
    """The last states (patches, width) of all images, and those of every layer."""
    return encoded if len(x) == 1 else join_states(*encoded)


def join_states(first: Any, layers: Any) -> Any:
    """The last states of all images, if the encoder returns those of its layers."""
    return (first if layers is None else layers[-1].flatten(0, 1), layers)


def move_features(model: Any, /, image_features: Any, input_ids: Any) -> Any:
    """The features (rows, tokens, width) of a batch's images, at the places of their tokens."""
    is_image = (input_ids == model.config.image_token_index).reshape(-1)
    places = mx.maximum(mx.cumsum(is_image) - 1, 0).reshape(input_ids.shape)
    return image_features.flatten(0, 1)[places]


def is_shown(model: Any, pixel_values: Any) -> bool:
    """Whether a prompt of PaliGemma has images."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return pixel_values is not None and kind == "paligemma"


def read_whole(prefill_step_size: Any) -> None:
    """No limit of a prompt's chunks."""


PATCH = Patch(
    id="paligemma-images",
    changes_solo=True,
    every_model=True,
    targets=(
        *result("mlx_vlm.models.paligemma.vision:Encoder.__call__", join_images),
        *argument(
            "mlx_vlm.models.paligemma.paligemma:Model._prepare_inputs_for_multimodal",
            "image_features",
            move_features,
        ),
        *argument(
            vlm_generators("generate_step"),
            "prefill_step_size",
            read_whole,
            when=is_shown,
            supports=True,
        ),
    ),
)
