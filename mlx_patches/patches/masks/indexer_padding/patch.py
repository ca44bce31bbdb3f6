"""GLM 5 Next's indexer takes a batch's padding for text.

Why
    Its layers keep for each position whether it is text, and select what a token attends to from
    a row's first position of text. Without an attention mask each position counts as text, and
    mlx-vlm's engine gives none to prompts with hits in its prefix cache, which it pads on the
    right. Once the prompt is read, that padding is in front of the row: every later token selects
    other positions than alone.
How
    Where a call has no attention mask and a row has padding in it, the model gets the mask that
    the batch's pooling caches count by. They have it as numbers, so no device is read. A call
    without padding, as each decode step is, runs as it did.
Upstream
    Not fixed in mlx-vlm 0.7.10.
Retire when
    The model asks its caches for padding, or the engine gives a mask for every prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

Span = tuple[int, int]


def masked(
    call: Callable[..., Any],
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    cache: Any = None,
    attention_mask: Any = None,
    **kwargs: Any,
) -> Any:
    """Read these positions with a mask of the text among them."""
    # Another patch's layer may let this one run.
    if not has_padding(model, inputs, inputs_embeds, cache, attention_mask):
        return call(model, inputs, inputs_embeds, cache, attention_mask, **kwargs)
    import mlx.core as mx

    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    starts, ends = (mx.array(side)[:, None] for side in zip(*find_text(cache, length), strict=True))
    positions = mx.arange(length)
    attention_mask = (positions >= starts) & (positions < ends)
    return call(model, inputs, inputs_embeds, cache, attention_mask, **kwargs)


def has_padding(
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    cache: Any = None,
    attention_mask: Any = None,
    **kwargs: Any,
) -> bool:
    """Whether a call without a mask has padding."""
    if attention_mask is not None or not cache:
        return False
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    return any(span != (0, length) for span in find_text(cache, length))


def find_text(cache: Any, length: int) -> list[Span]:
    """Each row's text among the next positions, as its pooling caches count it: first, end."""
    for layer in cache:
        for part in getattr(layer, "caches", ()):
            held = vars(part)
            if "_processed" in held:
                left = held.get("left_padding", [0] * len(held["_processed"]))
                rows = zip(left, held["_lengths"], held["_processed"], strict=True)
                return [row_text(*row, length) for row in rows]
    return []


def row_text(left: int, limit: int, processed: int, length: int) -> Span:
    """A row's text among the next positions.

    Args:
        left: how many of its left padding are to come.
        limit: how many tokens it will have had when its right padding begins.
        processed: how many it has had.
        length: the number of positions.
    """
    start = min(left, length)
    return start, start + max(0, min(limit - processed, length - start))


PATCH = Patch(
    id="indexer-padding",
    summary="GLM 5 Next in mlx-vlm: wrong output after a prefix-cache hit in a batch",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.glm5_next.language",
            "Glm5NextTextModel.__call__",
            around(masked),
            fingerprint_of=("Glm5NextTextModel.__call__", "Glm5NextIndexer.__call__"),
            when=has_padding,
        ),
    ),
)
