"""Aya Vision's sliding layers get the mask of its full layers.

Why
    The decoder makes one mask, from a full layer's cache, for both kinds of layer. A sliding
    layer's cache holds only its window, in another number of columns: past the window such a
    layer attends to too many tokens, in a batch it attends to padding, and the text depends on
    how a prompt is cut into chunks.
How
    The decoder makes a mask only if it is called without one. It is called with a pair, one mask
    from the first cache of each kind, and every layer's attention uses the mask of its kind.
Upstream
    mlx-vlm 0.5.0.
Retire when
    No supported release is older than mlx-vlm 0.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ....core.patch import Patch, Target, around


class Masks(NamedTuple):
    """A mask for each kind of layer, passed to the decoder in place of one mask."""

    full: Any
    sliding: Any


def call_with_masks(
    call: Callable[..., Any],
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
) -> Any:
    """Run the decoder with a mask for each kind of layer."""
    if mask is None and cache and cache[0] is not None:
        tokens = inputs if inputs_embeds is None else inputs_embeds
        mask = masks(model.config, tokens.shape[1], cache)
    return call(model, inputs, inputs_embeds, mask, cache)


def masks(config: Any, tokens: int, cache: Any) -> Masks:
    """The masks for this many tokens; the last layer of each pattern is a full one."""
    full = cache[min(config.sliding_window_pattern, len(cache)) - 1]
    return Masks(
        full.make_mask(tokens, return_array=False, window_size=None),
        cache[0].make_mask(tokens, return_array=False, window_size=config.sliding_window),
    )


def attended(
    call: Callable[..., Any], attention: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """Run a layer's attention with the mask of its kind."""
    if type(mask) is Masks:
        mask = mask.sliding if attention.use_sliding_window else mask.full
    return call(attention, x, mask, cache)


_MODULE = "mlx_vlm.models.aya_vision.language"
# The decoder has the defect; how its mask is used depends on the attention.
_BODY = ("Attention.__call__", "CohereModel.__call__")

PATCH = Patch(
    id="aya-masks",
    summary="Aya Vision: wrong output past its sliding window",
    targets=(
        Target("mlx-vlm", _MODULE, "Attention.__call__", around(attended), _BODY),
        Target("mlx-vlm", _MODULE, "CohereModel.__call__", around(call_with_masks), _BODY),
    ),
)
