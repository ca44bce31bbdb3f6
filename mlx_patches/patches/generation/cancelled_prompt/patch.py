"""mlx-vlm: a request cancelled during prefill garbles the other rows of its batch.

Why: With the prefix cache, the rests of prompts are right-padded, and the caches are prepared for
    it. After the last chunk they are finalized, but only if a row still has padding. If the padded
    rows were cancelled meanwhile, the caches keep expecting padding: a recurrent layer takes each
    token of the answer for padding and never updates its state again, a rotating cache moves its
    newest keys to the front. If the longest row was cancelled, with the prefix cache or without,
    all others keep padding, which counts as text in models that derive the position of a single row
    from the number of its keys (Qwen2-VL to Qwen3.5).
How: When the last right-padded row is cancelled, the caches are finalized at once, which moves
    nothing. After the last chunk, caches drop the padding that all rows have, as they do when a row
    ends. Both happen only after a request was cancelled.
Upstream: mlx-vlm 0.7.8, the first release that removes single rows during prefill, to 0.7.10: not
    fixed.
Retire when: ``PromptProcessingBatch`` finalizes all caches that it has prepared, and drops padding
    that all rows have.
"""

from typing import Any

from ....core.verbs import Function, Patch, mx, wrap


def end_padding(remove: Function, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Remove a row during prefill; finalize the caches with the last padded one."""
    was_padded = is_padded(batch)
    removed = remove(batch, *args, **kwargs)
    if was_padded and not is_padded(batch):
        for cache in batch.prompt_cache:
            cache.finalize()
    return removed


def drop_padding(generate: Function, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Process the last chunk, and drop the padding that all rows have from their caches."""
    caches, rows, common = batch.prompt_cache, len(batch.uids), has_common_padding(batch)
    generation = generate(batch, *args, **kwargs)
    if common:
        for cache in caches:
            cache.filter(mx.arange(rows))
    return generation


def has_common_padding(batch: Any) -> bool:
    """Whether all rows have padding on the same side."""
    return any(
        min(pads or (0,)) > 0 for pads in (batch._left_padding_per_row, batch._right_pad_per_row)
    )


def is_padded(batch: Any) -> bool:
    return any(batch._right_pad_per_row or ())


_REMOVE, _GENERATE = "PromptProcessingBatch.remove", "PromptProcessingBatch.generate"
_MODULE = "mlx_vlm.generate.ar"
_BODIES = (_REMOVE, _GENERATE)
PATCH = Patch(
    id="cancelled-prompt",
    targets=(
        *wrap(f"{_MODULE}:{_REMOVE}", end_padding, fingerprint_of=_BODIES),
        *wrap(f"{_MODULE}:{_GENERATE}", drop_padding, fingerprint_of=_BODIES),
    ),
)
