"""A mask cut to the new keys alone no longer fits once the cache adds the earlier ones.

Why
    These models' attention does ``mask = mask[..., : keys.shape[-2]]`` before
    ``cache.update_and_fetch``. A batch's mask has a column for every key that will be in the
    cache; the cut keeps the first few. A decode step then sees its rows' padding through one
    column that stands for all, and a second chunk of a prompt cannot be broadcast. A row alone
    has no mask array, so it goes unseen.
How
    The model makes its mask only where it is given none, so it is given one: the first cache's
    own, as an array that a cut from its start leaves whole. Where the cache makes no array,
    nothing changes.
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
    """The decoder's output, with a mask that stays whole until the cache is updated."""
    if mask is None and cache and hasattr(cache[0], "make_mask"):
        tokens = inputs if inputs_embeds is None else inputs_embeds
        mask = whole(cache[0].make_mask(tokens.shape[1], return_array=False, window_size=None))
    return call(model, inputs, inputs_embeds, mask, cache, *args, **kwargs)


def whole(mask: Any) -> Any:
    """A mask array (..., queries, keys) that ``mask[..., :n]`` does not cut; others as they are."""
    return _whole_mask()(mask) if hasattr(mask, "dtype") else mask


@functools.cache
def _whole_mask() -> Any:
    import mlx.core as mx

    class WholeMask(mx.array):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis:
                columns = index[1]
                if isinstance(columns, slice) and columns.start is columns.step is None:
                    return self
            return super().__getitem__(index)

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
