"""ModernBERT (float16), Qwen3 in mlx-vlm, mlx-embeddings: NaN for a text batched with a longer one.

Why: ModernBERT's masks hold -1e9, which float16 reads as minus infinity, and those of Qwen3 in
    mlx-embeddings hold minus infinity. A pad token whose window has only pad tokens, or that is
    left of the text, then attends to nothing: its state is NaN. In the next layer it has weight 0
    for the text, and 0 times NaN is NaN for the whole text.
How: The masks hold -30000 instead of minus infinity. A pad token's state is then finite, and the
    text's own weights are the same.
Upstream: Not fixed in mlx-vlm 0.7.10 and mlx-embeddings 0.1.0.
Retire when: The masks are finite in float16.
"""

from typing import Any

from ....core.verbs import Patch, mx, result

# A weight of 0 in any type.
LEAST = -30000


def limit_masks(masks: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(limit_mask, masks))


def limit_mask(mask: Any) -> Any:
    """A mask without minus infinity; the same one if its type holds -1e9.

    mlx-embeddings passes masks of integers, which become float16 in its attention.
    """
    if mask.dtype in (mx.float32, mx.bfloat16):
        return mask
    return clamp_mask(mask)


def clamp_mask(mask: Any) -> Any:
    return mx.maximum(mask, mx.array(LEAST, mask.dtype))


PATCH = Patch(
    id="encoder-masks",
    every_model=True,
    targets=(
        *result(
            (
                "mlx_vlm.models.modernbert.modernbert:Model._masks",
                "mlx_embeddings.models.modernbert:ModernBertModel._update_attention_mask",
            ),
            limit_masks,
        ),
        # The mask of the padding keeps minus infinity: pad tokens attend to the text after them.
        *result("mlx_embeddings.models.qwen3:Qwen3Model._create_causal_mask", clamp_mask),
    ),
)
