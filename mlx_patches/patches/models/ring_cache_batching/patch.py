"""A batch of Unlimited-OCR attends to tokens that the same row alone has dropped.

Why
    The model attends to the whole prompt and to its newest tokens, which its own cache class
    keeps in a ring buffer. A batch has a plain cache, and so has a row extracted from a batch:
    there, the model attends to every token that was ever generated. Alone, a ring also starts too
    early if the prompt's last token is fed separately, as mlx-vlm does since 0.7.0, or is the only
    one: the ring then counts this token as generated and drops it.
How
    A decode step over a plain cache gets a mask through the model's own argument: the row's
    prompt, and as many of its newest tokens as the ring holds. The first cache carries the
    lengths of its rows' prompts. A ring that joins a batch is laid out in order. Where a prompt
    ends, a ring or a row that counted the prompt's last token as generated starts anew: after a
    call with embeddings, which only prompts have, after a ring's first call, and before the
    engine generates.
Upstream
    Not fixed in mlx-vlm 0.7.10. omlx also sets the end of a prompt itself, but before the
    last token (pull request 3448).
Retire when
    mlx-vlm batches ``RingSlidingKVCache``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.row_record import RECORD, cache_targets, count_rows, fill_column, update_record

MODULE = "mlx_vlm.models.unlimited_ocr.language"
# In place of a prompt's length: its last token has not been fed yet.
_ONE_TO_COME = -1


def language_model(original: Any) -> Callable[..., Any]:
    """The model's inherited call, with a mask that drops what a ring would drop."""

    def __call__(
        model: Any,
        inputs: Any,
        inputs_embeds: Any = None,
        mask: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        # How many generated tokens the model attends to; None for all.
        window = model.config.sliding_window_size or model.config.sliding_window
        prompt = inputs_embeds is not None or (cache and is_ring(cache[0]) and not cache[0].offset)
        if cache and window is not None and not prompt and not is_ring(cache[0]):
            if inputs.shape[1] > 1:
                note_end(cache[0])
            elif mask is None:
                mask = ring_mask(cache[0], window)
        inherited = importlib.import_module(MODULE).DeepseekLanguageModel
        answer = inherited.__call__(model, inputs, inputs_embeds, mask, cache, **kwargs)
        if cache and prompt:
            end_prompts(cache)
        return answer

    return __call__


def generate(original: Callable[..., Any], prompts: Any, *args: Any, **kwargs: Any) -> Any:
    """``PromptProcessingBatch.generate``, after which all tokens so far count as prompt."""
    caches = getattr(prompts, "prompt_cache", ())  # the original leaves an empty list
    answer = original(prompts, *args, **kwargs)
    end_prompts(caches)
    return answer


def end_prompts(caches: Sequence[Any]) -> None:
    """Count the last token that was fed as the last of its row's prompt, in every layer.

    A ring that has taken more than one token since its prompt stays as it is.
    """
    for cache in caches:
        if is_ring(cache):
            if cache.prefill_length is not None and cache.offset == cache.prefill_length + 1:
                cache.prefill_length = None
        # Other models' caches may be tuples or None.
        elif (record := getattr(cache, "__dict__", {}).get(RECORD)) and record.lengths is not None:
            update_record(cache, lengths=None)


def is_ring(cache: Any) -> bool:
    """Whether a cache is a ``RingSlidingKVCache``."""
    return hasattr(cache, "prefill_length") and hasattr(cache, "_ring_pos")


def note_end(cache: Any) -> None:
    """Record on a cache that the last tokens of its rows' prompts are still to come.

    This holds if the prompts are right-padded: their last tokens are then fed together.
    """
    if getattr(cache, "_right_padding", None) is not None:
        import mlx.core as mx

        lengths = fill_column(cache, "lengths", count_rows(cache))
        update_record(cache, lengths=mx.where(lengths > 0, lengths, _ONE_TO_COME))


def ring_mask(cache: Any, window: int) -> Any:
    """The mask (rows, 1, 1, keys) of a decode step over a plain cache.

    None if the cache is quantized: a row alone has no ring then either.
    """
    if hasattr(cache, "bits"):
        return None
    import mlx.core as mx

    offsets = mx.array(cache.offset).reshape(-1, 1)
    lengths = fill_column(cache, "lengths", offsets.shape[0])
    # As in a ring, the prompt ends where the first single token is fed; one token later for
    # ``_ONE_TO_COME``.
    lengths = mx.where(lengths > 0, lengths, offsets - lengths)
    update_record(cache, lengths=lengths)
    keys = getattr(cache, "_idx", cache.offset) + 1
    padding = mx.array(getattr(cache, "left_padding", 0)).reshape(-1, 1)
    place = mx.arange(keys)[None] - padding
    seen = (place >= 0) & ((place < lengths) | (place > offsets - window))
    return seen[:, None, None]


def merge(original: Any) -> Any:
    """``merge`` of rings: one plain batch cache that carries the lengths of their prompts."""

    def merge_rows(cls: Any, caches: Sequence[Any]) -> Any:
        return importlib.import_module("mlx_vlm.models.cache").BatchKVCache.merge(
            [in_order(ring) for ring in caches]
        )

    return classmethod(merge_rows)


def in_order(ring: Any) -> Any:
    """A ring as a plain cache: every token at its position, zeros for dropped tokens.

    Raises:
        ValueError: the ring's write position shows that it was fed several tokens at once.
    """
    import mlx.core as mx

    row = importlib.import_module("mlx_vlm.models.cache").KVCache()
    row.keys, row.values, row.offset = ring.keys, ring.values, ring.offset
    prompt, window = ring.prefill_length, ring.window_size
    if prompt is None:
        return row
    update_record(row, lengths=mx.array([[prompt]]))
    generated = ring.offset - prompt
    if generated <= window:
        return row
    if ring._ring_pos != generated % window:
        raise ValueError("a ring that was fed several tokens at once cannot join a batch")
    newest = mx.arange(ring.offset - window, ring.offset)
    slots = prompt + (newest - prompt) % window

    def laid_out(held: Any) -> Any:
        gap = mx.zeros_like(held[..., :1, :])
        gap = mx.repeat(gap, generated - window, axis=2)
        return mx.concatenate([held[..., :prompt, :], gap, held[..., slots, :]], axis=2)

    row.keys, row.values = laid_out(ring.keys), laid_out(ring.values)
    return row


PATCH = Patch(
    id="ring-cache-batching",
    formerly="ring-rows",
    summary="Unlimited-OCR in a batch attends to tokens that a single request has dropped",
    targets=(
        Target(
            "mlx-vlm", MODULE, "LanguageModel.__call__", language_model, ("LanguageModel",), True
        ),
        Target("mlx-vlm", MODULE, "RingSlidingKVCache.merge", merge, ("RingSlidingKVCache",), True),
        Target(
            "mlx-vlm",
            "mlx_vlm.generate.ar",
            "PromptProcessingBatch.generate",
            around(generate),
            supports=True,
        ),
        *cache_targets("mlx-vlm", "BatchKVCache"),
    ),
)
