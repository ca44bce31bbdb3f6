"""Feeds a rotating batch prompts in chunks, one of them a single token."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, mx, own_class_of, require_names

WINDOW = 4
# Tokens in each row's history, tokens in its prompt, and the sizes of the prompt's chunks.
CASES = (
    ((3, 6), (3, 1), (2, 1)),
    ((3, 6), (1, 0), (1,)),
    ((2, 3), (3, 2), (2, 1)),
    ((6, 3), (3, 4), (1, 2, 1)),
    ((1, 6), (3, 3), (1, 2)),
)


def probe(target: Target) -> Result:
    """Red if a chunk raises, or a token attends to other tokens than in a solo run."""
    kind = own_class_of(target)
    require_names(kind, "finalize", "_update_concat")
    for histories, lengths, chunks in CASES:
        try:
            wrong = find_wrong_view(kind, histories, lengths, chunks)
        except RuntimeError as error:
            return Result(True, f"chunks of {chunks}: {error}")
        if wrong:
            return Result(True, f"chunks of {chunks}: {wrong}")
    return Result(False, "every token sees its own window")


def find_wrong_view(
    kind: Any, histories: Sequence[int], lengths: Sequence[int], chunks: Sequence[int]
) -> str:
    """Describe a token that does not see its window; empty if there is none.

    Keys are numbers: a row's first token is 1.
    """
    longest = max(histories)
    batch = kind(WINDOW, [longest - history for history in histories])
    ends = mx.array(histories)[:, None, None, None]
    prompt = ends - longest + mx.arange(1.0, longest + 1)[:, None]
    batch.update_and_fetch(prompt, prompt)
    padded = max(lengths)
    batch.prepare(lengths=list(lengths), right_padding=[padded - one for one in lengths])
    done = 0
    for chunk in (*chunks, None):
        if chunk is None:  # a decode step, after the prompt
            batch.finalize()
            starts = [history + length for history, length in zip(histories, lengths, strict=True)]
            fed_to, chunk = [1] * len(starts), 1
        else:
            starts = [history + done for history in histories]
            fed_to = [max(0, min(chunk, length - done)) for length in lengths]
            done += chunk
        step = mx.array(starts)[:, None, None, None] + mx.arange(1.0, chunk + 1)[:, None]
        mask = batch.make_mask(chunk)
        keys = batch.update_and_fetch(step, step)[0]
        for row, (start, count) in enumerate(zip(starts, fed_to, strict=True)):
            for token in range(count):
                attended = mask[row % mask.shape[0], 0, token].tolist()
                held = keys[row, 0, :, 0].tolist()
                seen = sorted(key for key, on in zip(held, attended, strict=True) if on)
                last = start + token + 1
                if seen != list(range(max(1, last - WINDOW + 1), last + 1)):
                    return f"row {row}, token {last} sees {seen}"
    return ""
