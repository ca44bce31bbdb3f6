"""Llama 3.2 Vision in a batch sees its image only for the first token of an answer.

Why: The model computes an image's keys and values from its states in every call, and stores none of
    them in its caches. ``generate_step`` passes the states from call to call. The batch generator
    passes them only with the prompt, so the rest of the answer is generated without the image, even
    in a batch of one row.
How: The first cache keeps the image states of its rows, through all cache operations of a host. A
    call without states gets them by the model's own arguments: the states of all rows, padded; a
    mask of the padding; and the mask with which rows without an image skip these layers.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm's batches pass the states on, or the model keeps keys and values of images.
"""

import inspect
from typing import Any

from ....core.verbs import Function, Patch, define, mx, vlm_family
from ..._shared.image_states import ImageStates
from ..._shared.row_calls import by_name, find_argument
from ..._shared.row_record import cache_targets, read_record, update_record

STATES = "cross_attention_states"
# Which states a token attends to (rows, 1, tokens, states), and which rows have some.
MASK, SHOWN = "cross_attention_mask", "full_text_row_masked_out_mask"


@by_name
def keep_states(call: Function, bound: inspect.BoundArguments) -> Any:
    """The language model's call, in which a batch's rows see their images."""
    cache, states = (find_argument(bound, name) for name in ("cache", STATES))
    if cache and count_batch(cache[0]):
        if states is not None:
            rows, length, _ = states.shape
            update_record(cache[0], images=ImageStates(states, (length,) * rows))
        elif (images := find_images(cache[0])) is not None:
            bound.arguments.update(build_arguments(images))
    return call(*bound.args, **bound.kwargs)


def count_batch(cache: Any) -> int:
    """The number of rows in a batch cache; 0 for a cache outside a batch.

    It is read from the padding: ``row-by-row`` presents a batch's offset as a single number.
    """
    padding = getattr(cache, "left_padding", None)
    return 0 if padding is None else int(padding.size)


def find_images(cache: Any) -> ImageStates | None:
    """The image states of a batch's rows; None if their number of rows differs."""
    record = read_record(cache)
    images = record.images if record else None
    return images if images is not None and len(images.counts) == count_batch(cache) else None


def build_arguments(images: ImageStates) -> dict[str, Any]:
    """The model's arguments for the images of a batch's rows."""
    counts, longest = mx.array(images.counts), max(images.counts)
    arguments = {STATES: images.states}
    if min(images.counts) < longest:
        # A row without an image attends to zeros, whose values are zeros.
        own = (mx.arange(longest) < counts[:, None]) | (counts == 0)[:, None]
        arguments[MASK] = own[:, None, None]
    if not all(images.counts):
        arguments[SHOWN] = (counts > 0)[:, None, None, None]
    return arguments


PATCH = Patch(
    id="cross-attention-rows",
    targets=(
        *define(
            vlm_family("mllama", "LanguageModel.__call__"),
            keep_states,
            fingerprint_of=("LanguageModel.__call__", "MllamaTextCrossAttention.__call__"),
        ),
        # Up to 0.5.0 mlx-vlm's batches have mlx-lm's caches.
        *cache_targets("mlx-lm", "BatchKVCache"),
        *cache_targets("mlx-vlm", "BatchKVCache"),
    ),
)
