"""In a prompt without an image, Llama 3.2 Vision's tokens attend to later tokens.

Why
    Without an image the cross-attention layers have no image states to attend to. They then use
    the text's own projected queries as keys and values, without a mask: each token attends to
    later ones, a prompt fed in pieces gets other logits than the same prompt fed whole, and both
    differ from the model as it was trained.
How
    Without image states, in the call or in the cache, these layers return their input unchanged.
Upstream
    The model's original code, in transformers, skips these layers in a text prompt. Not fixed in
    mlx-vlm 0.7.10.
Retire when
    mlx-vlm skips them too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target


def with_image(call: Callable[..., Any]) -> Callable[..., Any]:
    """A cross-attention layer's call, which is skipped without an image."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if has_image(given.get("cross_attention_states"), given.get("cache")):
            return call(*args, **kwargs)
        return given["hidden_states"]

    return replacement


def has_image(states: Any, cache: Any) -> bool:
    """Whether there are image states to attend to, in the call or in the layer's cache."""
    return states is not None or getattr(cache, "keys", None) is not None


PATCH = Patch(
    id="mllama-text",
    summary="Llama 3.2 Vision attends to later tokens in prompts without an image: wrong output",
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
)
