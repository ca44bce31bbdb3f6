"""Llama 3.2 Vision reads ahead in a prompt without an image.

Why
    Without an image there is nothing to attend to across. The cross-attention layers then take
    the text's own projected queries for keys and values, and no mask: each token sees those
    that follow it, a prompt in pieces is told something else than a whole one, and both
    something else than by the model that was trained.
How
    Without an image's states, given or kept, these layers pass on what they get.
Upstream
    The model's original code, in transformers, skips them in a prompt of text. Live in
    mlx-vlm 0.7.10.
Retire when
    mlx-vlm skips them too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target


def with_image(call: Callable[..., Any]) -> Callable[..., Any]:
    """A cross-attention layer that needs an image."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if has_image(given.get("cross_attention_states"), given.get("cache")):
            return call(*args, **kwargs)
        return given["hidden_states"]

    return replacement


def has_image(states: Any, cache: Any) -> bool:
    """Whether there is an image's states to attend to."""
    return states is not None or getattr(cache, "keys", None) is not None


PATCH = Patch(
    id="mllama-text",
    summary="Llama 3.2 Vision reads ahead in a prompt without an image",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.mllama.language",
            "MllamaCrossAttentionDecoderLayer.__call__",
            with_image,
            ("MllamaCrossAttentionDecoderLayer.__call__", "MllamaTextModel.__call__"),
        ),
    ),
    probe="mlx_patches.probes.reads_ahead:probe",
    module=__name__,
)
