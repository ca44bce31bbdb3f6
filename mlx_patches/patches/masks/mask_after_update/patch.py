"""Qwen2-VL, Qwen2.5-VL and InternVL in a batch attend to padding, or crash in chunked prefill.

Why: These models' attention does ``mask = mask[..., : keys.shape[-2]]`` before
    ``cache.update_and_fetch``. A batch's mask has a column for every key that will be in the cache;
    the cut keeps only as many as there are new keys. A decode step then applies the first column to
    all keys, and the mask of a second chunk of a prompt cannot be broadcast. A single request has
    no mask array, so it is right.
How: If the first cache's mask has more columns than there are new keys, the layers get a stand-in
    that stays whole when it is cut. A batch that is known to have no padding gets "causal" for a
    later chunk of a prompt, in place of an array. In all other cases nothing changes.
Upstream: internvl_chat cuts after the update from mlx-vlm 0.5.0, qwen2_vl and qwen2_5_vl from
    0.7.9.
Retire when: No supported release is older than mlx-vlm 0.7.9.
"""

import functools
from typing import Any

from ....core.verbs import Patch, argument, vlm_family
from ..._shared.unpadded import is_unpadded


def make_mask(inputs: Any, inputs_embeds: Any, mask: Any, cache: Any) -> Any:
    """The mask of the next tokens: a whole array, "causal", or None for the release's own."""
    if not hasattr(cache[0], "make_mask"):
        return mask
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    if is_unpadded(cache[0], length):
        # The release's own mask is right, except for a later chunk of a prompt.
        return None if length == 1 or cache[0].keys is None else "causal"
    mask = cache[0].make_mask(length, return_array=False, window_size=None)
    return keep_whole(mask) if hasattr(mask, "dtype") and mask.shape[-1] > length else mask


def makes_mask(inputs: Any, inputs_embeds: Any, mask: Any, cache: Any) -> bool:
    """Whether the decoder makes a mask; a decode step without padding needs none."""
    if mask is not None or not cache:
        return False
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    return length > 1 or not is_unpadded(cache[0], length)


def keep_whole(mask: Any) -> Any:
    """A stand-in for a mask that returns the whole mask when it is cut to its first columns."""
    return _whole()(mask)


@functools.cache
def _whole() -> Any:
    import wrapt  # not at start-up

    class WholeMask(wrapt.ObjectProxy):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            match index:
                case (first, slice(start=None, step=None)) if first is ...:
                    return self.__wrapped__
            return self.__wrapped__[index]

    return WholeMask


PATCH = Patch(
    id="mask-after-update",
    targets=argument(
        vlm_family("internvl_chat qwen2_vl qwen2_5_vl", "Qwen2Model.__call__"),
        "mask",
        make_mask,
        fingerprint_of=("Attention.__call__", "Qwen2Model.__call__"),
        when=makes_mask,
    ),
)
