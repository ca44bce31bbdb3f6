"""GLM 5 Next in mlx-vlm: wrong output after a prefix-cache hit in a batch.

Why: Its layers record which positions are text, and count from a row's first text position to
    select what a token attends to. Without an attention mask every position counts as text, and
    mlx-vlm's engine passes none for prompts with a prefix-cache hit, which it right-pads. After
    prefill that padding is in front of the row, so every later token selects the wrong positions.
How: If a call has no attention mask and a row has padding, the model gets a mask computed from the
    counters of the batch's pooling caches, without a device read. A call without padding, such as a
    decode step, is unchanged.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The model reads padding from its caches, or the engine passes a mask for every prompt.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx, vlm_family

Span = tuple[int, int]


def make_text_mask(inputs: Any, inputs_embeds: Any, cache: Any) -> Any:
    """A mask (rows, length) of the text among these positions."""
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    starts, ends = (mx.array(side)[:, None] for side in zip(*find_text(cache, length), strict=True))
    positions = mx.arange(length)
    return (positions >= starts) & (positions < ends)


def has_padding(inputs: Any, inputs_embeds: Any, cache: Any, attention_mask: Any) -> bool:
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
    """A row's text among the next positions, after the left padding still to come."""
    start = min(left, length)
    return start, start + max(0, min(limit - processed, length - start))


PATCH = Patch(
    id="indexer-padding",
    targets=argument(
        vlm_family("glm5_next", "Glm5NextTextModel.__call__"),
        "attention_mask",
        make_text_mask,
        fingerprint_of=("Glm5NextTextModel.__call__", "Glm5NextIndexer.__call__"),
        when=has_padding,
    ),
)
