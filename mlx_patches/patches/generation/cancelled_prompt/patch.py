"""A request that is cancelled while mlx-vlm reads its prompt garbles those read with it.

Why
    With the prefix cache, the rests of prompts are padded on the right, and the caches are told
    so. After the last piece they are told that the padding is over, but only if a row still has
    some. Where the rows with padding were cancelled meanwhile, the caches go on to expect it: a
    recurrent layer takes each token of the answer for padding and never changes its state again,
    a rotating cache moves its newest keys to the front. Where the longest row was cancelled, with
    the prefix cache or without, all others keep padding, which counts as text in models that take
    a single row's position from the number of its keys (Qwen2-VL to Qwen3.5).
How
    When the last row with right padding is cancelled, the caches are told at once, which moves
    nothing. After the last piece, caches drop the padding that all rows have, as they do when a
    row ends. Both happen only after a request was cancelled.
Upstream
    mlx-vlm 0.7.8, the first release that takes single rows out of prompts in reading, to 0.7.10,
    not fixed.
Retire when
    ``PromptProcessingBatch`` finalizes all caches that it has prepared, and drops padding that all
    rows have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import GENERATORS, at


def end_padding(remove: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Take a row out of prompts in reading, and with the last padded one the padding."""
    was_padded = is_padded(batch)
    removed = remove(batch, *args, **kwargs)
    if was_padded and not is_padded(batch):
        for cache in batch.prompt_cache:
            cache.finalize()
    return removed


def drop_padding(generate: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Read the last piece, and drop the padding that all rows have from their caches."""
    caches, rows, common = batch.prompt_cache, len(batch.uids), has_common(batch)
    made = generate(batch, *args, **kwargs)
    if common:
        import mlx.core as mx

        for cache in caches:
            cache.filter(mx.arange(rows))
    return made


def has_common(batch: Any) -> bool:
    """Whether all rows have padding, on one side."""
    return any(
        min(pads or (0,)) > 0 for pads in (batch._left_padding_per_row, batch._right_pad_per_row)
    )


def is_padded(batch: Any) -> bool:
    """Whether a row has right padding."""
    return any(batch._right_pad_per_row or ())


_WRAPPERS = {
    "PromptProcessingBatch.remove": around(end_padding),
    "PromptProcessingBatch.generate": around(drop_padding),
}
PATCH = Patch(
    id="cancelled-prompt",
    every_model=True,
    summary="mlx-vlm: a request cancelled during prefill garbles the other rows of its batch",
    targets=at(GENERATORS[1:], _WRAPPERS, fingerprint_of=tuple(_WRAPPERS)),
)
