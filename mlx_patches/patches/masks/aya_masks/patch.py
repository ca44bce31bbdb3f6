"""Aya Vision: wrong output past its sliding window.

Why: The decoder makes one mask, from a full layer's cache, for both kinds of layer. A sliding
    layer's cache holds only its window, so the mask's columns are not its own: past the window,
    such a layer attends to too many tokens; in a batch, it attends to padding; and the text depends
    on how a prompt is cut into chunks.
How: The decoder makes a mask only if it is called without one. It is called with a pair, one mask
    from the first cache of each kind, and every layer's attention uses the mask of its kind.
Upstream: mlx-vlm 0.5.0.
Retire when: No supported release is older than mlx-vlm 0.5.0.
"""

from typing import Any, NamedTuple

from ....core.verbs import Patch, argument


class Masks(NamedTuple):
    """A mask for each kind of layer, passed to the decoder in place of one mask."""

    full: Any
    sliding: Any


def make_masks(model: Any, /, inputs: Any, inputs_embeds: Any, mask: Any, cache: Any) -> Any:
    """The decoder's masks, one per kind of layer; the last layer of each pattern is a full one."""
    if mask is not None or not cache or cache[0] is None:
        return mask
    config, length = model.config, (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    full = cache[min(config.sliding_window_pattern, len(cache)) - 1]
    return Masks(
        full.make_mask(length, return_array=False, window_size=None),
        cache[0].make_mask(length, return_array=False, window_size=config.sliding_window),
    )


def select_mask(attention: Any, /, mask: Any) -> Any:
    if type(mask) is Masks:
        return mask.sliding if attention.use_sliding_window else mask.full
    return mask


_MODEL = "mlx_vlm.models.aya_vision.language"
# The defect is in the decoder, but the attention decides how its mask is used.
_BODY = ("Attention.__call__", "CohereModel.__call__")

PATCH = Patch(
    id="aya-masks",
    targets=(
        *argument(f"{_MODEL}:Attention.__call__", "mask", select_mask, fingerprint_of=_BODY),
        *argument(f"{_MODEL}:CohereModel.__call__", "mask", make_masks, fingerprint_of=_BODY),
    ),
)
