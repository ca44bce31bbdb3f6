"""Hunyuan VL: an image's position ids come with its prompt, and stay on the model for no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from ..._shared.targets import GENERATORS, at

# The language model's attribute for the position ids of the newest prompt that was embedded.
POSITIONS = "_position_ids"


def embed(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """A prompt's embeddings, with its position ids (1, axes, tokens) if it has an image."""
    features = original(model, *args, **kwargs)
    if getattr(features, "position_ids", None) is None:
        features.position_ids = getattr(model.language_model, POSITIONS, None)
    return features


def begin(init: Callable[..., None], batch: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Begin to read prompts; the model forgets an image's position ids, as for a prompt alone."""
    if getattr(model, POSITIONS, None) is not None and is_hunyuan(model):
        model._position_ids = None
    init(batch, model, *args, **kwargs)


def is_hunyuan(model: Any) -> bool:
    """Whether a language model is Hunyuan VL's."""
    return type(model).__module__ == "mlx_vlm.models.hunyuan_vl.language"


TARGETS = (
    Target(
        "mlx-vlm",
        "mlx_vlm.models.hunyuan_vl.hunyuan_vl",
        "Model.get_input_embeddings",
        around(embed),
        supports=True,
    ),
    *at(GENERATORS, {"PromptProcessingBatch.__init__": around(begin)}, supports=True),
)
