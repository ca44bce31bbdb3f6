"""Unlimited-OCR in a batch attends to tokens that a single request has dropped.

Why: The model attends to the whole prompt and its newest tokens, which its own cache class keeps in
    a ring buffer. A batch, and a row extracted from one, has a plain cache, with which the model
    attends to every generated token. In a single request, a ring also starts too early if the
    prompt's last token is fed separately, as in mlx-vlm since 0.7.0, or is the only one: the ring
    counts this token as generated and later drops it.
How: A decode step with a plain cache gets a mask through the model's own argument: the row's
    prompt, and as many of its newest tokens as the ring holds. The first cache records the lengths
    of its rows' prompts. A ring that joins a batch is laid out in order. At the end of a prompt, a
    ring or a row that counted the prompt's last token as generated is reset: after a call with
    embeddings, which only prompts have, after a ring's first call, and before the engine generates.
Upstream: Not fixed in mlx-vlm 0.7.10. omlx sets the end of a prompt itself, but before the last
    token (pull request 3448).
Retire when: mlx-vlm batches ``RingSlidingKVCache``.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, add, mx, wrap
from ..._shared.row_record import RECORD, cache_targets, count_rows, fill_column, update_record

MODULE = "mlx_vlm.models.unlimited_ocr.language"
# Instead of a prompt's length: its last token has not been fed yet.
_ONE_TO_COME = -1


def call_with_mask(
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    """The model's inherited call, with a mask that hides what a ring would drop."""
    # The number of generated tokens that the model attends to; None for all.
    window = model.config.sliding_window_size or model.config.sliding_window
    prompt = inputs_embeds is not None or (cache and is_ring(cache[0]) and not cache[0].offset)
    if cache and window is not None and not prompt and not is_ring(cache[0]):
        if inputs.shape[1] > 1:
            record_pending(cache[0])
        elif mask is None:
            mask = build_mask(cache[0], window)
    inherited = importlib.import_module(MODULE).DeepseekLanguageModel
    output = inherited.__call__(model, inputs, inputs_embeds, mask, cache, **kwargs)
    if cache and prompt:
        end_prompts(cache)
    return output


def start_generation(generate: Function, prompts: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``PromptProcessingBatch.generate``; all tokens so far then count as prompt."""
    caches = getattr(prompts, "prompt_cache", ())  # the original leaves an empty list
    batch = generate(prompts, *args, **kwargs)
    end_prompts(caches)
    return batch


def end_prompts(caches: Sequence[Any]) -> None:
    """Count the last token fed as the last of its row's prompt, in every layer.

    A ring that got more than one token since its prompt is unchanged.
    """
    for cache in caches:
        if is_ring(cache):
            if cache.prefill_length is not None and cache.offset == cache.prefill_length + 1:
                cache.prefill_length = None
        # Other models' caches may be tuples or None.
        elif (record := getattr(cache, "__dict__", {}).get(RECORD)) and record.lengths is not None:
            update_record(cache, lengths=None)


def is_ring(cache: Any) -> bool:
    return hasattr(cache, "prefill_length") and hasattr(cache, "_ring_pos")


def record_pending(cache: Any) -> None:
    """Record in a cache that the last tokens of its rows' prompts are still to come.

    This is so if the prompts are right-padded: their last tokens are then fed in one call.
    """
    if getattr(cache, "_right_padding", None) is not None:
        lengths = fill_column(cache, "lengths", count_rows(cache))
        update_record(cache, lengths=mx.where(lengths > 0, lengths, _ONE_TO_COME))


def build_mask(cache: Any, window: int) -> Any:
    """The mask (rows, 1, 1, keys) of a decode step with a plain cache.

    None if the cache is quantized: a single request has no ring then either.
    """
    if hasattr(cache, "bits"):
        return None
    offsets = mx.array(cache.offset).reshape(-1, 1)
    lengths = fill_column(cache, "lengths", offsets.shape[0])
    # As in a ring, the prompt ends at the first token fed separately; one token later for
    # ``_ONE_TO_COME``.
    lengths = mx.where(lengths > 0, lengths, offsets - lengths)
    update_record(cache, lengths=lengths)
    keys = getattr(cache, "_idx", cache.offset) + 1
    padding = mx.array(getattr(cache, "left_padding", 0)).reshape(-1, 1)
    place = mx.arange(keys)[None] - padding
    seen = (place >= 0) & ((place < lengths) | (place > offsets - window))
    return seen[:, None, None]


def merge_rings(cls: Any, caches: Sequence[Any]) -> Any:
    """A plain batch cache that records the lengths of the rings' prompts."""
    module = importlib.import_module("mlx_vlm.models.cache")
    return module.BatchKVCache.merge([unroll_ring(ring) for ring in caches])


def unroll_ring(ring: Any) -> Any:
    """A ring as a plain cache: tokens at their positions, zeros for dropped ones."""
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

    def lay_out(kept: Any) -> Any:
        gap = mx.zeros_like(kept[..., :1, :])
        gap = mx.repeat(gap, generated - window, axis=2)
        return mx.concatenate([kept[..., :prompt, :], gap, kept[..., slots, :]], axis=2)

    row.keys, row.values = lay_out(ring.keys), lay_out(ring.values)
    return row


PATCH = Patch(
    id="ring-cache-batching",
    formerly="ring-rows",
    targets=(
        *add(f"{MODULE}:LanguageModel.__call__", call_with_mask, "LanguageModel"),
        *add(f"{MODULE}:RingSlidingKVCache.merge", classmethod(merge_rings), "RingSlidingKVCache"),
        *wrap(
            "mlx_vlm.generate.ar:PromptProcessingBatch.generate", start_generation, supports=True
        ),
        *cache_targets("mlx-vlm", "BatchKVCache"),
    ),
)
