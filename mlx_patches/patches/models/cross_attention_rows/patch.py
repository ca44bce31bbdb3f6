"""mlx-vlm's batch engine shows Llama 3.2 Vision an image for the first token of an answer only.

Why
    The model computes an image's keys and values from its states in every call, and keeps none of
    them in its caches. ``generate_step`` passes the states on from call to call. The batch
    generator passes them with the prompt alone, so the rest of the answer is of a text without an
    image, also if the batch has one row.
How
    The first cache keeps the states of its rows' images, through all that hosts do with rows. A
    call of a batch without states gets them by the model's own arguments: the states of all rows,
    padded, a mask of the padding, and the mask by which a row without an image leaves these layers
    as it entered them.
Upstream
    Not mended in mlx-vlm 0.7.10.
Retire when
    mlx-vlm's batches pass the states on, or the model keeps keys and values of images.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target
from ..._shared.image_states import ImageStates
from ..._shared.row_calls import bind_call, find_argument
from ..._shared.row_record import cache_targets, read_record, update_record

STATES = "cross_attention_states"
# Which states a token attends to (rows, 1, tokens, states), and which rows have some.
MASK, SHOWN = "cross_attention_mask", "full_text_row_masked_out_mask"


def keep_states(call: Callable[..., Any]) -> Callable[..., Any]:
    """The language model's call, in which a batch's rows see their images."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = bind_call(signature, args, kwargs)
        cache = None if bound is None else find_argument(bound, "cache")
        if bound is None or not cache or not count_batch(cache[0]):
            return call(*args, **kwargs)
        states = find_argument(bound, STATES)
        if states is not None:
            rows, length, _ = states.shape
            update_record(cache[0], images=ImageStates(states, (length,) * rows))
        elif (held := images_of(cache[0])) is not None:
            bound.arguments.update(arguments_of(held))
        return call(*bound.args, **bound.kwargs)

    return replacement


def count_batch(cache: Any) -> int:
    """How many rows a batch's cache has; 0 for a cache outside a batch.

    By its padding: ``row-by-row`` shows the model the offset of a batch as one number.
    """
    padding = getattr(cache, "left_padding", None)
    return 0 if padding is None else int(padding.size)


def images_of(cache: Any) -> ImageStates | None:
    """The states of the images of a batch's rows; None if they are of another number of rows."""
    record = read_record(cache)
    images = record.images if record else None
    return images if images is not None and len(images.counts) == count_batch(cache) else None


def arguments_of(images: ImageStates) -> dict[str, Any]:
    """The model's arguments for the images of a batch's rows."""
    import mlx.core as mx

    counts, longest = mx.array(images.counts), max(images.counts)
    given = {STATES: images.states}
    if min(images.counts) < longest:
        # A row without an image attends to zeros, whose values are zeros.
        own = (mx.arange(longest) < counts[:, None]) | (counts == 0)[:, None]
        given[MASK] = own[:, None, None]
    if not all(images.counts):
        given[SHOWN] = (counts > 0)[:, None, None, None]
    return given


PATCH = Patch(
    id="cross-attention-rows",
    summary="Llama 3.2 Vision in a batch sees its image only for the first token of an answer",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.mllama.language",
            "LanguageModel.__call__",
            keep_states,
            ("LanguageModel.__call__", "MllamaTextCrossAttention.__call__"),
        ),
        # Up to 0.5.0 mlx-vlm's batches have mlx-lm's caches.
        *cache_targets("mlx-lm", "BatchKVCache"),
        *cache_targets("mlx-vlm", "BatchKVCache"),
    ),
)
