"""Mistral 3 and Pixtral in mlx-lm: a single request attends beyond its sliding window.

Why: If a model's caches are plain (Mistral 3 and Pixtral make none), only the mask limits its
    sliding layers to the window. ``create_attention_mask`` returns None for a single token and
    "causal" for a prompt: past the window a single request attends to its whole text, and its
    logits differ from those in a batch, whose cache does mask the window.
How: Once the tokens outgrow the window, the mask is a causal one with the window.
Upstream: mlx-lm 0.30.6 checks the window first.
Retire when: No supported release is older than mlx-lm 0.30.6.
"""

import sys
from typing import Any

from ....core.verbs import Patch, result

MODULE = "mlx_lm.models.cache"


def mask_window(mask: Any, N: int, offset: int, window_size: int | None) -> Any:
    """The mask of ``N`` tokens after ``offset`` others: an array, "causal", or None for all."""
    if not is_past_window(N + offset, window_size):
        return mask
    module: Any = sys.modules[MODULE]
    return module.create_causal_mask(N, offset, window_size=window_size)


def is_past_window(tokens: int, window_size: int | None) -> bool:
    """Whether the first token is outside the window of the last."""
    return window_size is not None and tokens > window_size


PATCH = Patch(
    id="window-mask",
    every_model=True,
    targets=result(f"{MODULE}:create_attention_mask", mask_window),
)
