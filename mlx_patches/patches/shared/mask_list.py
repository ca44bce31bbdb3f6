"""A mask asked for with a list of caches ignores the batch's left padding.

Why
    ``create_attention_mask(h, cache)`` asks one layer's cache for its mask. Many models pass
    the whole list, or a slice of it: a list has no ``make_mask``, so the answer is "causal"
    for a prompt and no mask at all for a decode step, and every row attends to its padding.
    A solo cache gives the same answer, which is why it goes unseen.
How
    A list or a tuple becomes its first cache. The name is rebound wherever it was imported.
Upstream
    mlx-vlm 0.7.9 does the same. mlx-vlm took the function from mlx-lm up to 0.6.3; mlx-lm
    itself passes lists in minicpm3 and phixtral up to 0.31.3.
Retire when
    No supported release is older than mlx-vlm 0.7.9 and mlx-lm 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._patch import Patch, Target, around


def masked(create: Callable[..., Any], h: Any, cache: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The mask for ``h`` (rows, length, width) by the first of the caches."""
    return create(h, first(cache), *args, **kwargs)


def first(cache: Any) -> Any:
    """The first of a list of caches, None where it is empty; anything else as it is."""
    if isinstance(cache, (list, tuple)):
        return cache[0] if cache else None
    return cache


PATCH = Patch(
    id="mask-list",
    summary="a mask made from a list of caches ignores left padding",
    targets=tuple(
        Target(distribution, module, "create_attention_mask", around(masked))
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.base"),
            ("mlx-vlm", "mlx_vlm.models.base"),
        )
    ),
    probe="mlx_patches.probes.mask_list:probe",
    module=__name__,
)
