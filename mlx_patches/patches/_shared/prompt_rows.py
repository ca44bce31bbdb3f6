"""The arguments of prompts in mlx-vlm's batch generator, before it joins them into a batch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.patch import Factory, around

Rows = Sequence[Mapping[str, Any] | None]
# Items of a waiting sequence, which is (id, tokens, number of tokens to generate, arguments, ...).
_IDS, _ARGUMENTS = 1, 3


def before_joining(change: Callable[[Rows, list[int]], Rows]) -> dict[str, Factory]:
    """Wrappers of the two functions that join prompts' arguments, by their names.

    ``change`` gets each prompt's arguments and length, and returns the arguments to join; the very
    same sequence where there is nothing to change.
    """

    def merge(original: Callable[..., Any], rows: Rows, ids: Any, *rest: Any) -> Any:
        return original(change(rows, list(map(len, ids))), ids, *rest)

    def build(original: Callable[..., Any], generator: Any, sequences: Sequence[Any]) -> Any:
        """Build a batch of which some prompts begin in the prefix cache."""
        given = [one[_ARGUMENTS] for one in sequences]
        rows = change(given, [len(one[_IDS]) for one in sequences])
        if rows is given:
            return original(generator, sequences)
        changed = [
            (*one[:_ARGUMENTS], row, *one[_ARGUMENTS + 1 :])
            for one, row in zip(sequences, rows, strict=True)
        ]
        return original(generator, changed)

    return {
        "_merge_prefill_prompt_kwargs": around(merge),
        "BatchGenerator._build_mixed_prompt_batch": around(build),
    }


def count_columns(caches: Sequence[Any]) -> int:
    """How many columns the first of a model's caches holds, without a read of the device."""
    first = caches[0] if caches else None
    if first is None:
        return 0
    if isinstance(first.offset, int):
        return first.offset
    # A rotating batch writes its columns at `_idx`, and counts them in `_offset`.
    return int(getattr(first, "_offset", first._idx))
