"""Ministral 3 and Mistral 4 in a batch: all rows use row 0's attention scale, or NaN.

Why: Queries are scaled by their position (Llama 4's temperature). The models read only the position
    of row 0, ``cache[0].offset[0].item()``, and use its scale for all rows. If row 0 is padded, its
    positions begin below zero, the scale's logarithm is minus infinity or NaN, and the logits of
    all rows become NaN.
How: While the model runs, the function that computes the scale reads the rows' offsets from a
    context variable and returns one scale per row, (rows, 1, tokens, 1), with padding at position
    0. With a scalar offset nothing changes.
Upstream: Affected from mlx-vlm 0.4.3 to 0.7.10. mlx-vlm's text-only ministral3 has one scale per
    row.
Retire when: Both models use every row's offset.
"""

from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, mx, vlm_family, wrap

# Each row's offset and the number of tokens, while a model runs a batch.
_batch: ContextVar[tuple[Any, int] | None] = ContextVar("mlx_patches_mistral_batch", default=None)


def call_with_offsets(
    call: Function, model: Any, inputs: Any, cache: Any = None, inputs_embeds: Any = None
) -> Any:
    """Run the model, with the rows' offsets set for the function that computes the scale."""
    offsets = offsets_of(cache)
    if offsets is None:
        return call(model, inputs, cache, inputs_embeds)
    tokens = inputs if inputs_embeds is None else inputs_embeds
    token = _batch.set((offsets, tokens.shape[1]))
    try:
        return call(model, inputs, cache, inputs_embeds)
    finally:
        _batch.reset(token)


def offsets_of(cache: Any) -> Any:
    """The rows' offsets (rows,); None if the cache has a scalar offset."""
    offset = getattr(cache[0], "offset", None) if cache else None
    return offset if getattr(offset, "ndim", 0) else None


def scale_rows(make: Function, start: Any, stop: Any, beta: float, positions: int) -> Any:
    """The scale (rows, 1, tokens, 1) of each row's positions, or the release's (tokens, 1)."""
    batch = _batch.get()
    if batch is None:
        return make(start, stop, beta, positions)
    offsets, tokens = batch
    places = mx.maximum(offsets[:, None] + mx.arange(tokens), 0)
    return (1 + beta * mx.log(1 + mx.floor(places / positions)))[:, None, :, None]


PATCH = Patch(
    id="mistral-row-scale",
    targets=(
        *wrap(vlm_family("mistral4", "_get_llama_4_attn_scale"), scale_rows),
        *wrap(vlm_family("mistral4", "Mistral4Model.__call__"), call_with_offsets),
        *wrap(vlm_family("mistral3", "Ministral3.__call__"), call_with_offsets),
    ),
)
