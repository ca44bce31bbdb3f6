"""Gemma 3n in mlx-vlm: prompts are embedded 45 times too small; images are read transposed.

Why: The language model multiplies the embeddings of tokens by the root of its width, 45, unless it
    receives embeddings. mlx-vlm embeds a prompt before it calls the language model, without the
    factor. The vision tower also pools an image with exchanged axes, so the features of its rows
    stand for its columns.
How: The embeddings of a prompt's text get the factor, and the pooled features their own order.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: ``get_input_embeddings`` multiplies, and the tower pools without exchanging the axes.
"""

from typing import Any

from ....core.verbs import Patch, mx, result


def scale_words(embedded: Any, model: Any, /, input_ids: Any) -> Any:
    """The embeddings of a prompt; those of its text are multiplied like generated tokens."""
    features, *others = embedded if isinstance(embedded, tuple) else [embedded.inputs_embeds]
    is_word = (input_ids < model.embed_vision.vocab_offset)[..., None]
    features = mx.where(is_word, root_of_width(features) * features, features)
    if isinstance(embedded, tuple):  # before mlx-vlm 0.3.10
        return features, *others
    embedded.inputs_embeds = features
    return embedded


def root_of_width(features: Any) -> float:
    """The factor of embeddings in the language model."""
    return float(features.shape[-1] ** 0.5)


def exchange_axes(pooled: Any, adapter: Any, /) -> Any:
    """An image's features (images, rows, columns, width), if they were pooled."""
    return pooled.swapaxes(1, 2) if is_pooled(pooled, adapter.out_channels) else pooled


def is_pooled(features: Any, width: int) -> bool:
    return bool(features.shape[-1] == width)


PATCH = Patch(
    id="gemma3n-prompts",
    every_model=True,
    wrong_solo="gemma3n",
    targets=(
        *result("mlx_vlm.models.gemma3n.gemma3n:Model.get_input_embeddings", scale_words),
        *result(
            "mlx_vlm.models.gemma3n.vision:MobileNetV5MultiScaleFusionAdapter.__call__",
            exchange_axes,
        ),
    ),
)
