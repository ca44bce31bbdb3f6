"""mlx-vlm, mlx-embeddings: EmbeddingGemma embeddings are wrong for texts over half a window.

Why: Every layer gets the mask of the padding, so that each token attends to the whole text. The
    authors' sliding layers attend to half a window on each side: 256 tokens. mlx-embeddings 0.0.5
    adds 1 to the scores of a text's tokens and 0 to those of pad tokens, which are not masked.
How: The layers of a new model limit the mask to their window, and mask pad tokens. The masks of
    texts that fit half a window are unchanged.
Upstream: Not fixed in mlx-vlm 0.7.10 and mlx-embeddings 0.1.0, which masks pad tokens.
Retire when: The embedding model has a mask for its sliding layers.
"""

import functools
from typing import Any

from ....core.verbs import Patch, after, mx

# A weight of 0 in any type, but finite: a pad token far from its text must not be NaN.
LEAST = -30000


def limit_layers(model: Any, /) -> None:
    """Let a new model's layers mask pad tokens, and the sliding ones what their window excludes."""
    half = model.config.sliding_window // 2
    for layer in model.model.layers:
        kind: Any = type(layer)
        layer.__class__ = derive_layer(kind, half if layer.self_attn.is_sliding else None)


@functools.cache
def derive_layer(kind: Any, half: int | None) -> Any:
    """The class of a layer that limits its mask; ``half``: the tokens seen on each side."""

    class Layer(kind):  # type: ignore[misc]
        def __call__(self, x: Any, mask: Any = None, cache: Any = None) -> Any:
            return super().__call__(x, limit_mask(mask, half, x.dtype), cache)

    return Layer


def limit_mask(mask: Any, half: int | None, dtype: Any) -> Any:
    """A mask of numbers to add, without tokens at a distance above ``half``."""
    length = mask.shape[-1]
    if not mx.issubdtype(mask.dtype, mx.floating):
        mask = mx.where(mask == 0, -mx.inf, 0).astype(dtype)
    if half is None or length <= half + 1:
        return mask
    positions = mx.arange(length)
    return mx.where(mx.abs(positions[:, None] - positions) > half, LEAST, mask).astype(dtype)


PATCH = Patch(
    id="embedding-window",
    every_model=True,
    changes_solo=True,
    targets=after(
        (
            "mlx_vlm.models.gemma3_embedding.gemma3_embedding:Model.__init__",
            "mlx_embeddings.models.gemma3_text:Model.__init__",
        ),
        limit_layers,
    ),
)
