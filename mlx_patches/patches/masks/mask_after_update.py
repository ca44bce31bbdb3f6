"""A mask cut to the new keys alone no longer fits once the cache adds the earlier ones.

Why
    These models' attention does ``mask = mask[..., : keys.shape[-2]]`` before
    ``cache.update_and_fetch``. A batch's mask has a column for every key that will be in the
    cache; the cut keeps the first few. A decode step then sees its rows' padding through one
    column that stands for all, and a second chunk of a prompt cannot be broadcast. A row alone
    has no mask array, so it goes unseen.
How
    Where the first cache's mask has more columns than there are new keys, the layers get it as
    an array that stays whole when its columns are cut. A batch whose rows have no padding, where
    that is known as a number, gets no array: "causal" serves it. Everywhere else nothing changes.
Upstream
    internvl_chat cuts after the update from mlx-vlm 0.5.0, qwen2_vl and qwen2_5_vl from 0.7.9.
Retire when
    No supported release is older than mlx-vlm 0.7.9.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around
from ..caches.plain.unpadded import is_unpadded

_FAMILIES = ("internvl_chat", "qwen2_vl", "qwen2_5_vl")


def modelled(
    call: Callable[..., Any],
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The decoder's output, with a mask of which its attention uses every column."""
    if mask is None and cache and hasattr(cache[0], "make_mask"):
        length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
        mask = make_mask(cache[0], length)
    return call(model, inputs, inputs_embeds, mask, cache, *args, **kwargs)


def make_mask(cache: Any, length: int) -> Any:
    """The mask of the next tokens: a whole array, "causal", or None for the release's own."""
    if is_unpadded(cache, length):
        # What the release makes of it fits, but for a later piece of a prompt.
        return None if length == 1 or cache.keys is None else "causal"
    mask = cache.make_mask(length, return_array=False, window_size=None)
    return keep_whole(mask) if hasattr(mask, "dtype") and mask.shape[-1] > length else mask


def keep_whole(mask: Any) -> Any:
    """A mask that stays itself when it is cut."""
    return _whole()(mask)


@functools.cache
def _whole() -> Any:
    import wrapt  # not at start-up

    class WholeMask(wrapt.ObjectProxy[Any]):
        def __getitem__(self, index: Any) -> Any:
            return self.__wrapped__

    return WholeMask


PATCH = Patch(
    id="mask-after-update",
    summary="a batch's mask is cut to the newest keys: padding is attended to, chunks crash",
    targets=tuple(
        Target(
            "mlx-vlm",
            f"mlx_vlm.models.{family}.language",
            "Qwen2Model.__call__",
            around(modelled),
            body=("Attention.__call__", "Qwen2Model.__call__"),
        )
        for family in _FAMILIES
    ),
    probe="mlx_patches.probes.mask_after_update:probe",
    module=__name__,
)
