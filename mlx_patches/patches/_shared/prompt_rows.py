"""Change the arguments of prompts before mlx-vlm's batch generator joins them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from ...core.verbs import Target, wrap
from .targets import GENERATORS

Rows = Sequence[Mapping[str, Any] | None]
# Items of a waiting sequence, which is (id, tokens, number of tokens to generate, arguments, ...).
_IDS, _ARGUMENTS = 1, 3


def change_prompts(
    change: Callable[[Rows, list[int]], Rows], names: Iterable[str]
) -> tuple[Target, ...]:
    """Targets that join prompts' arguments, which ``change(rows, lengths)`` replaces.

    It is called if a prompt has an argument of these names.
    """
    changed_names = frozenset(names)

    def are_named(rows: Rows, /) -> bool:
        return not changed_names.isdisjoint(chain.from_iterable(filter(None, rows)))

    def are_named_in(generator: Any, sequences: Sequence[Any], /) -> bool:
        return are_named([one[_ARGUMENTS] for one in sequences])

    def merge(original: Callable[..., Any], rows: Rows, ids: Any, *rest: Any) -> Any:
        return original(change(rows, list(map(len, ids))), ids, *rest)

    def build(original: Callable[..., Any], generator: Any, sequences: Sequence[Any]) -> Any:
        """Build a batch in which some prompts begin in the prefix cache."""
        given = [one[_ARGUMENTS] for one in sequences]
        rows = change(given, [len(one[_IDS]) for one in sequences])
        if rows is given:
            return original(generator, sequences)
        changed = [
            (*one[:_ARGUMENTS], row, *one[_ARGUMENTS + 1 :])
            for one, row in zip(sequences, rows, strict=True)
        ]
        return original(generator, changed)

    return tuple(
        target
        for module in GENERATORS
        for target in (
            *wrap(f"{module}:_merge_prefill_prompt_kwargs", merge, when=are_named),
            *wrap(f"{module}:BatchGenerator._build_mixed_prompt_batch", build, when=are_named_in),
        )
    )


def count_columns(caches: Sequence[Any]) -> int:
    """The number of columns in the first of a model's caches, without a device read."""
    first = caches[0] if caches else None
    if first is None:
        return 0
    if isinstance(first.offset, int):
        return first.offset
    # A rotating batch writes its columns at `_idx`, and counts them in `_offset`.
    return int(getattr(first, "_offset", first._idx))
