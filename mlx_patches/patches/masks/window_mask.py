"""A sliding window over a plain cache is not masked: the model reads what it was never shown.

Why
    Where a model's caches are plain (Mistral 3 and Pixtral make none of their own), the window
    of its sliding layers is a matter of the mask alone. ``create_attention_mask`` gives none to
    a single token, and "causal" to a prompt: past the window a row alone attends to all of its
    text, and says something else than in a batch, whose cache does mask the window.
How
    Once the tokens outgrow the window, the mask is the causal one with a window.
Upstream
    mlx-lm 0.30.6 asks for the window first.
Retire when
    No supported release is older than mlx-lm 0.30.6.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

MODULE = "mlx_lm.models.cache"


def masked(
    create: Callable[..., Any],
    N: int,
    offset: int,
    return_array: bool = False,
    window_size: int | None = None,
) -> Any:
    """The mask of ``N`` tokens after ``offset`` others: an array, "causal", or None for all."""
    if outgrown(N + offset, window_size):
        module: Any = sys.modules[MODULE]
        return module.create_causal_mask(N, offset, window_size=window_size)
    return create(N, offset, return_array, window_size)


def outgrown(tokens: int, window_size: int | None) -> bool:
    """Whether some token does not see the first one any more."""
    return window_size is not None and tokens > window_size


PATCH = Patch(
    id="window-mask",
    summary="a sliding window over a plain cache is not masked",
    targets=(Target("mlx-lm", MODULE, "create_attention_mask", around(masked)),),
    probe="mlx_patches.probes.window_mask:probe",
    module=__name__,
)
