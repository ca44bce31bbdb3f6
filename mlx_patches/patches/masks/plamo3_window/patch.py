"""PLaMo 3 forgets a token that its mask still shows: decoding attends to a smaller window.

Why
    The model's mask shows ``window_size + 1`` tokens, the query's own among them, but its
    sliding caches hold ``window_size``. A prompt that is fed at once attends to the mask's
    window; in pieces, token by token, and in a batch, each position lacks its oldest key.
How
    The sliding caches hold as many tokens as the mask shows. The mask's window is the intended
    one: its code adds the one token explicitly, and a prompt that is fed at once always used it.
Upstream
    mlx-lm #1234 brought the model; not fixed in 0.32.2.
Retire when
    The model makes its caches for the window of its mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def make_windowed_caches(make_cache: Callable[[Any], list[Any]], model: Any) -> list[Any]:
    """The model's caches, one a layer."""
    caches = make_cache(model)
    for cache in caches:
        if getattr(cache, "max_size", None) == model.config.window_size:
            cache.max_size = shown(model.config.window_size)
    return caches


def shown(window_size: int) -> int:
    """How many tokens the mask shows to each token, itself included."""
    return window_size + 1


PATCH = Patch(
    id="plamo3-window",
    summary="PLaMo 3 in mlx-lm drops one token that its sliding window still covers: wrong output",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.plamo3",
            "Model.make_cache",
            around(make_windowed_caches),
            fingerprint_of=("Model.make_cache", "Plamo3Decoder.__call__"),
        ),
    ),
)
