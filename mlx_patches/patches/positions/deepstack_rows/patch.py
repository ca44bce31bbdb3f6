"""Qwen3-VL: image features are added to the wrong tokens in a batch or a long prompt.

Why: The vision tower's deepstack features are a list with one array per layer, of only the image
    tokens. The batch generator handles only arrays. It uses the first row's list for the whole
    batch, drops text rows when it joins the masks of image tokens, and slices the mask for the
    chunks of a prompt, but not the features: every chunk starts again at the first of them. The
    models of 0.5.0 to 0.6.2 slice a chunk's mask once more, which leaves nothing of it. Single
    requests are wrong as well if the prompt is longer than a chunk. Qwen3-Omni of 0.6.7 to 0.7.2
    uses the whole prompt's mask for each chunk, and adds features past the chunk's end: MLX does
    not check bounds, and the process may crash.
How: Before rows are joined or split, the features of all rows become one table, and each token gets
    the number of its table row, counted from 1, or 0 if it has none. These numbers are an array
    (rows, tokens), which the generator pads, slices and joins like any other. The language model's
    wrapper turns them back into lists for the tokens fed. The features are stored once, only for
    image tokens. Lists of a whole prompt are sliced by the cache's offset.
Upstream: Qwen3-Omni passes an array since mlx-vlm 0.7.3; Qwen3-VL still passes lists in 0.7.10.
Retire when: No supported release passes lists.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.verbs import Function, Patch, around, define, mx, vlm_family, wrap
from ..._shared.prompt_chunks import find_fed
from ..._shared.prompt_rows import change_prompts
from ..._shared.targets import vlm_generators

FEATURES = "deepstack_visual_embeds"
MASK = "visual_pos_masks"
# The features of all rows, one array per layer. The generator passes this argument through.
TABLE = "_mlx_patches_deepstack"

Arguments = Mapping[str, Any]


def split_with_numbers(split: Function, arguments: Arguments | None, count: int) -> Any:
    """Split the arguments of all prompts into those of each, with numbered features."""
    mask = (arguments or {}).get(MASK)
    if arguments and mask is not None and mask.shape[0] == count:
        (arguments,) = number_features([arguments], [mask.shape[1]])
    return split(arguments, count)


def number_features(
    rows: Sequence[Arguments | None], lengths: Sequence[int]
) -> Sequence[Arguments | None]:
    """The prompts' arguments with numbers (prompts, tokens) instead of features, and the table.

    Returns ``rows`` unchanged if no prompt has features, or if a prompt's features do not match
    its image tokens.
    """
    if not any(map(has_features, rows)):
        return rows
    numbered = [number_tokens(row or {}, length) for row, length in zip(rows, lengths, strict=True)]
    tables = {id(table): table for _, _, table in numbered if table is not None}
    if not tables or any(numbers is None for _, numbers, _ in numbered):
        return rows
    # The line of the joined table at which each table begins.
    starts, lines = {}, 0
    for key, table in tables.items():
        starts[key] = lines
        lines += table[0].shape[0]
    joined = list(tables.values())
    whole = joined[0] if len(joined) == 1 else list(map(mx.concatenate, zip(*joined, strict=True)))
    numbered_rows: list[Arguments | None] = []
    for row, (mask, numbers, table) in zip(rows, numbered, strict=True):
        if start := starts.get(id(table), 0):
            numbers = mx.where(numbers > 0, numbers + start, 0)
        numbered_rows.append({**(row or {}), MASK: mask, FEATURES: numbers, TABLE: whole})
    return numbered_rows


def has_features(row: Arguments | None) -> bool:
    """Whether a prompt has features: a list of arrays, or numbers with their table."""
    return row is not None and (isinstance(row.get(FEATURES), list) or TABLE in row)


def number_tokens(row: Arguments, length: int) -> tuple[Any, Any, Any]:
    """A prompt's mask, its tokens' numbers, and its table with one array of features per layer.

    The numbers are None if the features do not match the image tokens, the table is None if the
    prompt has no features.
    """
    mask, features, table = (row.get(name) for name in (MASK, FEATURES, TABLE))
    if mask is None:
        mask = mx.zeros((1, length), mx.bool_)
    if table is not None:  # numbered already, in a batch that was split
        return mask, features, table
    if not (isinstance(features, list) and features):
        return mask, mx.zeros(mask.shape, mx.int32), None
    counted = itertools.count(1)
    numbers = [next(counted) if visual else 0 for visual in mask.reshape(-1).tolist()]
    if any(layer.shape[0] != max(numbers, default=0) for layer in features):
        return mask, None, features
    return mask, mx.array(numbers, mx.int32).reshape(mask.shape), features


def may_have_features(*args: Any, **kwargs: Any) -> bool:
    """Whether a call passes a table of features, or lists of a single prompt."""
    return TABLE in kwargs or isinstance(kwargs.get(FEATURES), list)


def call_with_fed(call: Function, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """The language model's call, with lists of the features of the tokens fed."""
    if TABLE not in kwargs and kwargs.get(MASK) is not None:
        kwargs |= slice_fed(kwargs, inputs.shape[1])
    table = kwargs.pop(TABLE, None)
    if table is not None:
        kwargs.pop("n_to_process", None)  # with it some releases slice the mask once more
        kwargs[FEATURES] = list_features(kwargs[FEATURES], table)
    return call(model, inputs, *args, **kwargs)


def slice_fed(arguments: Arguments, length: int) -> Arguments:
    """The features of the next ``length`` tokens, if those of the whole prompt are given.

    Empty if they are not.
    """
    mask, cache = arguments[MASK], arguments.get("cache")
    if not cache or mask.shape[1] <= length:
        return {}
    _, numbers, table = number_tokens(arguments, mask.shape[1])
    if numbers is None or table is None:
        return {}
    fed = find_fed(mask, cache, length)
    return {MASK: mask[:, fed], FEATURES: numbers[:, fed], TABLE: table}


def list_features(numbers: Any, table: Sequence[Any]) -> list[Any]:
    """The features (image tokens, width) of these tokens for each layer, row after row."""
    lines = mx.array([n - 1 for n in numbers.reshape(-1).tolist() if n], mx.uint32)
    return [layer[lines] for layer in table]


PATCH = Patch(
    id="deepstack-rows",
    targets=(
        *define(
            vlm_family("qwen3_vl qwen3_vl_moe qwen3_omni_moe", "LanguageModel.__call__"),
            around(call_with_fed),
            when=may_have_features,
        ),
        *change_prompts(lambda rows, lengths: number_features(rows, lengths), (FEATURES, TABLE)),
        *wrap(vlm_generators("_split_prompt_kwargs_per_row"), split_with_numbers),
    ),
)
