"""Qwen3-VL adds an image's features to other tokens, or none, in a batch and in a long prompt.

Why
    The vision tower's deepstack features come as a list: an array for each layer, of the image
    tokens alone. The batch generator knows arrays only. It takes the first row's list for the
    whole batch, leaves out rows of text as it joins the masks that say where the images are,
    and cuts the mask into the pieces of a prompt, but not the features: every piece begins
    with the first of them. A row alone whose prompt is longer than a piece is wrong as well.
How
    Before rows are joined or split, the features are put where their tokens are, in one array
    that the generator pads, cuts and joins like every other; rows of text get zeros. The
    language model turns it back into lists, of the tokens that it is fed.
Upstream
    Qwen3-Omni does the same in mlx-vlm 0.7.x; Qwen3-VL hands over lists in 0.7.10.
Retire when
    No supported release hands over lists.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.patch import Patch, Target, around

FEATURES = "deepstack_visual_embeds"
MASK = "visual_pos_masks"
# Of a sequence that waits for its turn: its id, tokens, number of tokens to say, arguments.
_IDS, _ARGUMENTS = 1, 3

Arguments = Mapping[str, Any]


def merged(
    merge: Callable[..., Any],
    rows: Sequence[Arguments | None],
    ids: Sequence[Sequence[int]],
    *rest: Any,
) -> Any:
    """One batch of prompts, whose features are where their tokens are."""
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
    """The prompts' arguments with features of shape (prompts, tokens, layers, width).

    As they are where no prompt has lists, or one whose features are not those of its tokens.
    """
    import mlx.core as mx

    lists = [(row or {}).get(FEATURES) for row in rows]
    like = next((found for found in lists if isinstance(found, list) and found), None)
    if like is None:
        return rows
    layers, width, dtype = len(like), like[0].shape[-1], like[0].dtype
    placed: list[Arguments | None] = []
    for row, found, length in zip(rows, lists, lengths, strict=True):
        mask = (row or {}).get(MASK)
        if mask is None:
            mask = mx.zeros((1, length), mx.bool_)
        features = mx.zeros((*mask.shape, layers, width), dtype)
        if found:
            at = tokens(mask)
            if any(one.shape[0] != at.size for one in found):
                return rows
            flat = features.reshape(-1, layers, width)
            flat[at] = mx.stack(found, axis=1)
            features = flat.reshape(features.shape)
        placed.append({**(row or {}), MASK: mask, FEATURES: features})
    return placed


def tokens(mask: Any) -> Any:
    """Where a mask (rows, tokens) is true, row after row."""
    import mlx.core as mx

    flat = mask.reshape(-1).tolist()
    return mx.array([place for place, visual in enumerate(flat) if visual], mx.uint32)


def by_list(call: Callable[..., Any]) -> Callable[..., Any]:
    """The language model's call, that gets the features of its tokens as lists."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        features, mask = (bound.arguments.get(name) for name in (FEATURES, MASK))
        if getattr(features, "ndim", 0) == 4 and mask is not None:
            bound.arguments[FEATURES] = listed(features, mask)
        return call(*bound.args, **bound.kwargs)

    return replacement


def listed(features: Any, mask: Any) -> list[Any]:
    """An array of a layer's features for each layer, (image tokens, width)."""
    flat = features.reshape(-1, *features.shape[2:])[tokens(mask)]
    return [flat[:, layer] for layer in range(features.shape[2])]


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
