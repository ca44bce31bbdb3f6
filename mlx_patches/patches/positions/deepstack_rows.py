"""Qwen3-VL adds an image's features to other tokens, or none, in a batch and in a long prompt.

Why
    The vision tower's deepstack features come as a list: an array for each layer, of the image
    tokens alone. The batch generator knows arrays only. It takes the first row's list for the
    whole batch, leaves out rows of text as it joins the masks that say where the images are,
    and cuts the mask into the pieces of a prompt, but not the features: every piece begins
    with the first of them. A row alone whose prompt is longer than a piece is wrong as well.
How
    Before rows are joined or split, the features of all rows become one table, and each token
    gets the number of its line, 0 where it has none: an array (rows, tokens) that the generator
    pads, cuts and joins like every other. The language model turns it back into lists, of the
    tokens that it is fed. The features themselves are kept once, of image tokens alone.
Upstream
    Qwen3-Omni does the same in mlx-vlm 0.7.x; Qwen3-VL hands over lists in 0.7.10.
Retire when
    No supported release hands over lists.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.patch import Patch, Target, around

FEATURES = "deepstack_visual_embeds"
MASK = "visual_pos_masks"
# What the generator hands on as it is: the features of all rows, a layer's for each layer.
TABLE = "_mlx_patches_deepstack"
# Of a sequence that waits for its turn: its id, tokens, number of tokens to say, arguments.
_IDS, _ARGUMENTS = 1, 3

Arguments = Mapping[str, Any]


def merged(
    merge: Callable[..., Any],
    rows: Sequence[Arguments | None],
    ids: Sequence[Sequence[int]],
    *rest: Any,
) -> Any:
    """One batch of prompts, whose tokens know their features."""
    return merge(aligned(rows, list(map(len, ids))), ids, *rest)


def mixed(build: Callable[..., Any], generator: Any, sequences: Sequence[Any]) -> Any:
    """The same of prompts some of which begin in the prefix cache."""
    lengths = [len(one[_IDS]) for one in sequences]
    rows = aligned([one[_ARGUMENTS] for one in sequences], lengths)
    return build(
        generator,
        [
            (*one[:_ARGUMENTS], row, *one[_ARGUMENTS + 1 :])
            for one, row in zip(sequences, rows, strict=True)
        ],
    )


def split(apart: Callable[..., Any], arguments: Arguments | None, count: int) -> Any:
    """The arguments of each prompt out of those of all."""
    mask = (arguments or {}).get(MASK)
    if arguments and mask is not None and mask.shape[0] == count:
        (arguments,) = aligned([arguments], [mask.shape[1]])
    return apart(arguments, count)


def aligned(rows: Sequence[Arguments | None], lengths: Sequence[int]) -> Sequence[Arguments | None]:
    """The prompts' arguments with numbers (prompts, tokens) in place of features, and their table.

    As they are where no prompt has features, or one whose features are not those of its tokens.
    """
    import mlx.core as mx

    numbered = [number_tokens(row or {}, length) for row, length in zip(rows, lengths, strict=True)]
    tables = {id(table): table for _, _, table in numbered if table is not None}
    if not tables or any(numbers is None for _, numbers, _ in numbered):
        return rows
    # Where each table's lines begin in the one of all.
    starts, lines = {}, 0
    for key, table in tables.items():
        starts[key] = lines
        lines += table[0].shape[0]
    joined = list(tables.values())
    whole = joined[0] if len(joined) == 1 else list(map(mx.concatenate, zip(*joined, strict=True)))
    placed: list[Arguments | None] = []
    for row, (mask, numbers, table) in zip(rows, numbered, strict=True):
        if start := starts.get(id(table), 0):
            numbers = mx.where(numbers > 0, numbers + start, 0)
        placed.append({**(row or {}), MASK: mask, FEATURES: numbers, TABLE: whole})
    return placed


def number_tokens(row: Arguments, length: int) -> tuple[Any, Any, Any]:
    """A prompt's mask, its tokens' numbers, and the table: a layer's features for each layer.

    No numbers where the features are not those of its tokens; no table where it has none.
    """
    import mlx.core as mx

    mask, features, table = (row.get(name) for name in (MASK, FEATURES, TABLE))
    if mask is None:
        mask = mx.zeros((1, length), mx.bool_)
    if table is not None:  # of a batch that was split
        return mask, features, table
    if not (isinstance(features, list) and features):
        return mask, mx.zeros(mask.shape, mx.int32), None
    counted = itertools.count(1)
    numbers = [next(counted) if visual else 0 for visual in mask.reshape(-1).tolist()]
    if any(layer.shape[0] != max(numbers, default=0) for layer in features):
        return mask, None, features
    return mask, mx.array(numbers, mx.int32).reshape(mask.shape), features


def by_list(call: Callable[..., Any]) -> Callable[..., Any]:
    """The language model's call, that gets the features of its tokens as lists."""

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        table = kwargs.pop(TABLE, None)
        if table is not None:
            kwargs[FEATURES] = listed(kwargs[FEATURES], table)
        return call(*args, **kwargs)

    return replacement


def listed(numbers: Any, table: Sequence[Any]) -> list[Any]:
    """Of each layer the features of these tokens, (image tokens, width), row after row."""
    import mlx.core as mx

    lines = mx.array([n - 1 for n in numbers.reshape(-1).tolist() if n], mx.uint32)
    return [layer[lines] for layer in table]


_GENERATE = "mlx_vlm.generate.ar"

PATCH = Patch(
    id="deepstack-rows",
    summary="Qwen3-VL adds an image's features to other tokens in a batch and in a long prompt",
    targets=(
        *(
            Target(
                "mlx-vlm",
                f"mlx_vlm.models.{family}.language",
                "LanguageModel.__call__",
                by_list,
            )
            for family in ("qwen3_vl", "qwen3_vl_moe")
        ),
        Target("mlx-vlm", _GENERATE, "_merge_prefill_prompt_kwargs", around(merged)),
        Target("mlx-vlm", _GENERATE, "_split_prompt_kwargs_per_row", around(split)),
        Target("mlx-vlm", _GENERATE, "BatchGenerator._build_mixed_prompt_batch", around(mixed)),
    ),
    probe="mlx_patches.probes.deepstack_rows:probe",
    module=__name__,
)
