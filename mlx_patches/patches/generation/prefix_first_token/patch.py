"""With mlx-vlm's prefix cache, a request of a batch gets a wrong first token.

Why
    Of prompts whose beginnings are in the prefix cache, the rests are padded on the right and
    processed in pieces. A row's first token is looked up in the logits of the last piece. Where
    the row ended in an earlier piece, the index is out of range. In 0.7.0 the last piece is one
    token, so this happens in every batch with rests of different length; before, where a
    checkpoint for the cache or ``prefill_step_size`` ends a piece.
How
    A piece ends where a row ends, and the row's logits are kept. With the last piece, the release
    gets each row's logits where it looks them up. The prompts stay in one batch.
Upstream
    Fixed in mlx-vlm 0.7.1, in the same way.
Retire when
    No supported release is older than mlx-vlm 0.7.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import GENERATORS, at

# On a batch of prompts: the logits after the last token of each row that has ended.
ENDED = "_mlx_patches_first_logits"


def end_with_rows(step: Callable[..., int], batch: Any) -> int:
    """Process a piece of the prompts, at most up to where the next row ends."""
    if not any(batch._right_pad_per_row or ()):
        return step(batch)
    size, start = batch.prefill_step_size, batch._processed_prompt_columns
    rest = min(length for length in batch._suffix_lens if length > start) - start
    batch.prefill_step_size = min(size or rest, rest)
    outputs: list[Any] = []
    try:
        with next_output(batch, outputs.append):
            taken = step(batch)
    finally:
        batch.prefill_step_size = size
    if outputs:
        keep_ended(batch, logits_of(outputs[0]))
    return taken


def keep_ended(batch: Any, logits: Any) -> None:
    """Keep the last logits of the rows that end where the batch has come to."""
    import mlx.core as mx

    come_to = batch._processed_prompt_columns
    rows = [row for row, length in enumerate(batch._suffix_lens) if length == come_to]
    # Copies, so that the piece's other logits are freed.
    kept = {row: mx.contiguous(logits[row, -1]) for row in rows}
    mx.async_eval(list(kept.values()))
    vars(batch).setdefault(ENDED, {}).update(kept)


def find_ended(generate: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Process the last piece, and choose every row's first token."""
    if not (kept := vars(batch).pop(ENDED, None)):
        return generate(batch, *args, **kwargs)

    def with_ended(output: Any) -> Any:
        import mlx.core as mx

        logits, pads = logits_of(output), batch._right_pad_per_row
        first = [kept[n] if n in kept else logits[n, -1 - pad] for n, pad in enumerate(pads)]
        # The release takes the column before the padding, and rolls caches only if there is some.
        logits = mx.repeat(mx.stack(first)[:, None], 2, axis=1)
        batch._right_pad_per_row = [1] * len(pads)
        if not hasattr(output, "logits"):
            return logits
        output.logits = logits
        return output

    with next_output(batch, with_ended):
        return generate(batch, *args, **kwargs)


def logits_of(output: Any) -> Any:
    """The logits (rows, columns, vocabulary) of a model's output."""
    return getattr(output, "logits", output)


@contextmanager
def next_output(batch: Any, see: Callable[[Any], Any]) -> Iterator[None]:
    """Show the output of the model's next call; what ``see`` returns, if anything, replaces it."""
    model = batch.model

    def call(*args: Any, **kwargs: Any) -> Any:
        batch.model = model  # the release hands it on
        output = model(*args, **kwargs)
        seen = see(output)
        return output if seen is None else seen

    batch.model = call
    try:
        yield
    finally:
        batch.model = model


PATCH = Patch(
    id="vlm-prefix-first-token",
    formerly="prefix-first-token",
    every_model=True,
    summary="mlx-vlm: wrong first token in a batch after a prefix-cache hit",
    targets=at(
        GENERATORS,
        {
            "PromptProcessingBatch.prompt_step": around(end_with_rows),
            "PromptProcessingBatch.generate": around(find_ended),
        },
    ),
)
