"""mlx-vlm: wrong first token in a batch after a prefix-cache hit.

Why: If the beginnings of prompts are in the prefix cache, their rests are right-padded and
    processed in chunks. A row's first token is looked up in the logits of the last chunk. If the
    row ended in an earlier chunk, the index is out of range. In 0.7.0 the last chunk is one token,
    so this happens in every batch with rests of different lengths; before, if a checkpoint for the
    cache or ``prefill_step_size`` ends a chunk.
How: Chunks end where rows end, and the row's logits are kept. With the last chunk, the release
    receives each row's logits where it looks them up. The prompts stay in one batch.
Upstream: Fixed in mlx-vlm 0.7.1, in the same way.
Retire when: No supported release is older than mlx-vlm 0.7.1.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ....core.verbs import Patch, mx, wrap
from ..._shared.targets import vlm_generators

# On a batch of prompts: the logits after the last token of each row that has ended.
ENDED = "_mlx_patches_first_logits"


def end_with_rows(step: Callable[..., int], batch: Any) -> int:
    """Process a chunk of the prompts that ends no later than the next row."""
    if not any(batch._right_pad_per_row or ()):
        return step(batch)
    size, start = batch.prefill_step_size, batch._processed_prompt_columns
    rest = min(length for length in batch._suffix_lens if length > start) - start
    batch.prefill_step_size = min(size or rest, rest)
    outputs: list[Any] = []
    try:
        with next_output(batch, outputs.append):
            count = step(batch)
    finally:
        batch.prefill_step_size = size
    if outputs:
        keep_logits(batch, get_logits(outputs[0]))
    return count


def keep_logits(batch: Any, logits: Any) -> None:
    """Keep the last logits of the rows that end with the chunk."""
    processed = batch._processed_prompt_columns
    rows = [row for row, length in enumerate(batch._suffix_lens) if length == processed]
    # Copies, so that the chunk's other logits are freed.
    kept = {row: mx.contiguous(logits[row, -1]) for row in rows}
    mx.async_eval(list(kept.values()))
    vars(batch).setdefault(ENDED, {}).update(kept)


def choose_first(generate: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Process the last chunk, and choose every row's first token."""
    if not (kept := vars(batch).pop(ENDED, None)):
        return generate(batch, *args, **kwargs)

    def add_kept(output: Any) -> Any:
        logits, pads = get_logits(output), batch._right_pad_per_row
        first = [kept[n] if n in kept else logits[n, -1 - pad] for n, pad in enumerate(pads)]
        # The release reads the column before the padding, and rolls caches only if rows have some.
        logits = mx.repeat(mx.stack(first)[:, None], 2, axis=1)
        batch._right_pad_per_row = [1] * len(pads)
        if not hasattr(output, "logits"):
            return logits
        output.logits = logits
        return output

    with next_output(batch, add_kept):
        return generate(batch, *args, **kwargs)


def get_logits(output: Any) -> Any:
    """The logits (rows, columns, vocabulary) of a model's output."""
    return getattr(output, "logits", output)


@contextmanager
def next_output(batch: Any, use: Callable[[Any], Any]) -> Iterator[None]:
    """Pass the output of the model's next call to ``use``, whose result replaces it if not None."""
    model = batch.model

    def call(*args: Any, **kwargs: Any) -> Any:
        batch.model = model  # the release passes it on
        output = model(*args, **kwargs)
        replacement = use(output)
        return output if replacement is None else replacement

    batch.model = call
    try:
        yield
    finally:
        batch.model = model


PATCH = Patch(
    id="vlm-prefix-first-token",
    formerly="prefix-first-token",
    targets=(
        *wrap(vlm_generators("PromptProcessingBatch.prompt_step"), end_with_rows),
        *wrap(vlm_generators("PromptProcessingBatch.generate"), choose_first),
    ),
)
