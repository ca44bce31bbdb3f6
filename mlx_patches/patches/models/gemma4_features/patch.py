"""Gemma 4 in mlx-vlm 0.4.3: images are misread, and two of other sizes crash.

Why: The tower pools the padding of an image into its first feature. Features are normalized after
    the projection instead of before it, and multiplied with the text by the root of the width.
    Images of other sizes are joined to an array. On a CPU, rows that attend to nothing are NaN.
How: Padding is set to 0, the norm comes first, the factor is divided out, each image runs through
    the tower, and masks are finite.
Upstream: mlx-vlm 0.4.4 repairs the features, 0.5.0 images of other sizes and masks.
Retire when: No supported release is older than mlx-vlm 0.5.
"""

from typing import Any

from ....core.verbs import Function, Patch, argument, mx, wrap

_TOWER = "mlx_vlm.models.gemma4.vision"
# mlx-vlm 0.5 hides padding by this number.
HIDDEN = -1e4


def clear_padding(hidden_states: Any, padding_positions: Any) -> Any:
    return mx.where(padding_positions[..., None], 0, hidden_states)


def limit_mask(mask: Any) -> Any:
    return mask if mask is None else mx.maximum(mask, HIDDEN)


def project(call: Function, embedder: Any, inputs_embeds: Any) -> Any:
    """Features that the language model multiplies by the root of its width."""
    norm = getattr(embedder, "embedding_post_projection_norm", None)
    if norm is None:
        return call(embedder, inputs_embeds)
    projected = embedder.embedding_projection(norm(inputs_embeds))
    return projected / projected.shape[-1] ** 0.5


def read_each(call: Function, tower: Any, pixel_values: Any) -> Any:
    """The features of each image, joined."""
    if not isinstance(pixel_values, list):
        return call(tower, pixel_values)
    return mx.concatenate([call(tower, add_axis(one)) for one in pixel_values], axis=1)


def add_axis(image: Any) -> Any:
    image = mx.array(image)
    return image if image.ndim == 4 else image[None]


PATCH = Patch(
    id="gemma4-features",
    every_model=True,
    wrong_solo="gemma4",
    targets=(
        *argument(f"{_TOWER}:VisionPooler.__call__", "hidden_states", clear_padding),
        *argument(
            f"{_TOWER}:VisionAttention.__call__",
            "mask",
            limit_mask,
            fingerprint_of=("VisionModel.__call__",),
        ),
        *wrap(f"{_TOWER}:VisionModel.__call__", read_each),
        *wrap("mlx_vlm.models.gemma4.gemma4:MultimodalEmbedder.__call__", project),
    ),
)
