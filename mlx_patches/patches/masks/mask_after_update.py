"""A mask cut to the new keys alone no longer fits once the cache adds the earlier ones.

Why
    These models' attention does ``mask = mask[..., : keys.shape[-2]]`` before
    ``cache.update_and_fetch``. A batch's mask has a column for every key that will be in the
    cache; the cut keeps the first few. A decode step then sees its rows' padding through one
    column that stands for all, and a second chunk of a prompt cannot be broadcast. A row alone
    has no mask array, so it goes unseen.
How
    Where the first cache's mask has more columns than there are new keys, the layers' attention
    is asked for its rotated queries, keys and values alone, and the release's own
    ``scaled_dot_product_attention`` gets them after the update, with the whole mask. What else
    the attention computes is never evaluated: MLX is lazy. Everywhere else nothing changes.
Upstream
    internvl_chat cuts after the update from mlx-vlm 0.5.0, qwen2_vl and qwen2_5_vl from 0.7.9.
Retire when
    No supported release is older than mlx-vlm 0.7.9.
"""

from __future__ import annotations

import copy
import sys
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
    """The decoder's output, with a mask of which its attention uses every column."""
    if mask is None and cache and hasattr(cache[0], "make_mask"):
        length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
        mask = cache[0].make_mask(length, return_array=False, window_size=None)
        if hasattr(mask, "dtype") and mask.shape[-1] > length:
            model = with_whole_masks(model)
    return call(model, inputs, inputs_embeds, mask, cache, *args, **kwargs)


def with_whole_masks(model: Any) -> Any:
    """The decoder, of the same weights, with attention that does not cut its mask."""
    placed = copy.copy(model)
    placed.layers = [copy.copy(layer) for layer in model.layers]
    for layer in placed.layers:
        layer.self_attn = WholeMask(layer.self_attn)
    return placed


class WholeMask:
    """A layer's attention, whose scores are masked after the cache's update."""

    def __init__(self, attention: Any):
        self.attention = attention

    def __getattr__(self, name: str) -> Any:
        return getattr(self.attention, name)

    def __call__(self, x: Any, mask: Any, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the output (rows, length, width) for ``x`` (rows, length, width)."""
        attention = self.attention
        queries = handed_on(asking_queries(attention), x, cache, *args, **kwargs).keys
        new = handed_on(attention, x, cache, *args, **kwargs)
        keys, values = cache.update_and_fetch(new.keys, new.values)
        attend = sys.modules[type(attention).__module__].scaled_dot_product_attention
        output = attend(queries, keys, values, cache, scale=attention.scale, mask=mask)
        return attention.o_proj(output.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))


def asking_queries(attention: Any) -> Any:
    """The attention with its queries in the place of its keys, which are rotated alike."""
    asked = copy.copy(attention)
    asked.k_proj = asked.v_proj = attention.q_proj
    asked.n_kv_heads = attention.n_heads
    if hasattr(attention, "q_norm"):
        asked.k_norm = attention.q_norm
    return asked


class HandedOn:
    """What an attention hands its cache: keys and values (rows, heads, length, width)."""

    keys: Any
    values: Any

    def __init__(self, offset: Any):
        self.offset = offset

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Keep the keys and values, and give back these alone."""
        self.keys, self.values = keys, values
        return keys, values


def handed_on(attention: Any, x: Any, cache: Any, *args: Any, **kwargs: Any) -> HandedOn:
    """What the attention would hand the cache for ``x``; the cache is not changed."""
    handed = HandedOn(cache.offset)
    attention(x, None, handed, *args, **kwargs)
    return handed


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
