"""Aya Vision's sliding layers get the mask of its full layers.

Why
    The decoder makes one mask, from a full layer's cache, for both kinds of layer. A sliding
    layer's cache holds its window alone and another number of columns: past the window such a
    layer sees too much, in a batch it sees padding, and chunks of a prompt change the text.
How
    The decoder makes its mask only where it is given none, so it is given a pair, one mask from
    the first cache of each kind; every layer's attention takes the one of its kind.
Upstream
    mlx-vlm 0.5.0.
Retire when
    No supported release is older than mlx-vlm 0.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.patch import Patch, Target, around


class Masks(NamedTuple):
    """What a decoder's layers are given: a mask for each kind of layer."""

    full: Any
    sliding: Any


def modelled(
    call: Callable[..., Any],
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
) -> Any:
    """The decoder's states, with a mask of each kind."""
    if mask is None and cache and cache[0] is not None:
        tokens = inputs if inputs_embeds is None else inputs_embeds
        mask = masks(model.config, tokens.shape[1], cache)
    return call(model, inputs, inputs_embeds, mask, cache)


def masks(config: Any, tokens: int, cache: Any) -> Masks:
    """The masks for so many tokens; the last layer of each pattern is a full one."""
    full = cache[min(config.sliding_window_pattern, len(cache)) - 1]
    return Masks(
        full.make_mask(tokens, return_array=False, window_size=None),
        cache[0].make_mask(tokens, return_array=False, window_size=config.sliding_window),
    )


def attended(
    call: Callable[..., Any], attention: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """The attention's output with the mask of its kind."""
    if type(mask) is Masks:
        mask = mask.sliding if attention.use_sliding_window else mask.full
    return call(attention, x, mask, cache)


_MODULE = "mlx_vlm.models.aya_vision.language"
# The decoder carries the defect; what its masks do depends on the attention.
_BODY = ("Attention.__call__", "CohereModel.__call__")

PATCH = Patch(
    id="aya-masks",
    summary="Aya Vision's sliding layers get the full layers' mask: wrong past the window",
    targets=(
        Target("mlx-vlm", _MODULE, "Attention.__call__", around(attended), _BODY),
        Target("mlx-vlm", _MODULE, "CohereModel.__call__", around(modelled), _BODY),
    ),
    probe="mlx_patches.probes.aya_masks:probe",
    module=__name__,
)
