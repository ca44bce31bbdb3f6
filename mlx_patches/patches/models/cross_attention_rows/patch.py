"""Llama 3.2 Vision: answers attend to padding and earlier images, or in a batch to no image.

Why: The model computes an image's keys and values from its states in every call, and stores none of
    them in its caches. ``generate_step`` passes the states from call to call. The batch generator
    passes them only with the prompt, so the rest of the answer is generated without the image, even
    in a batch of one row. Neither passes the prompt's mask: the answer also attends to the padding
    of an image of few tiles, and to all images instead of the last one.
How: The first cache keeps the image states of its rows, through all cache operations of a host, and
    which of them the prompt's last token attends to. A later call gets them by the model's own
    arguments: the states of all rows, padded; that mask; and the mask with which rows without an
    image skip these layers.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm's batches pass the states on, or the model keeps keys and values of images.
"""

import inspect
from typing import Any

from ....core.verbs import Function, Patch, define, mx, vlm_family
from ..._shared.image_states import ImageStates
from ..._shared.row_calls import by_name, find_argument, find_shape
from ..._shared.row_record import cache_targets, read_record, update_record

STATES = "cross_attention_states"
# Which states a token attends to (rows, 1, tokens, states), and which rows have some.
MASK, SHOWN = "cross_attention_mask", "full_text_row_masked_out_mask"
# A smaller number in a mask hides a state.
HIDDEN = -1e8


@by_name
def keep_states(call: Function, bound: inspect.BoundArguments) -> Any:
    """The language model's call, in which a batch's rows see their images."""
    cache = find_argument(bound, "cache")
    if cache:
        states, mask = find_argument(bound, STATES), find_argument(bound, MASK)
        rows, images = count_batch(cache[0]), find_images(cache[0])
        shape = find_shape(bound) if images and states is None and not rows else None
        if shape and shape[1] > 1:  # another prompt, after a prefix of the one with the images
            update_record(cache[0], images=None)
        elif images and mask is None and (states is None or states is images.states):
            bound.arguments.update(build_arguments(images))
        elif states is not None and (rows or mask is not None):
            counts = (states.shape[1],) * states.shape[0]
            # The states that the last token attends to.
            shown = None if mask is None else mask[:, :, -1:] > HIDDEN
            update_record(cache[0], images=ImageStates(states, counts, shown))
    return call(*bound.args, **bound.kwargs)


def count_batch(cache: Any) -> int:
    """The number of rows in a batch cache; 0 for a cache outside a batch.

    It is read from the padding: ``row-by-row`` presents a batch's offset as a single number.
    """
    padding = getattr(cache, "left_padding", None)
    return 0 if padding is None else int(padding.size)


def find_images(cache: Any) -> ImageStates | None:
    """The image states of a cache's rows; None if their number of rows differs."""
    record = read_record(cache)
    images = record.images if record else None
    return images if images and len(images.counts) == (count_batch(cache) or 1) else None


def build_arguments(images: ImageStates) -> dict[str, Any]:
    """The model's arguments for the images of a batch's rows."""
    arguments = {STATES: images.states}
    if images.shown is not None or min(images.counts) < max(images.counts):
        arguments[MASK] = images.mask()
    if not all(images.counts):
        arguments[SHOWN] = (mx.array(images.counts) > 0)[:, None, None, None]
        # A row without an image attends to zeros, whose values are zeros.
        arguments[MASK] = arguments[MASK] | ~arguments[SHOWN]
    return arguments


PATCH = Patch(
    id="cross-attention-rows",
    wrong_solo="mllama",
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
