"""Generates with mlx-vlm, with a drafter that is always wrong."""

import sys
from types import SimpleNamespace
from typing import Any

from ..core.arrays import mx

TOKENS = 8


def decode(module: Any, model: Any, prompt: list[int], **options: Any) -> list[int]:
    options = {"max_tokens": TOKENS, "temperature": 0.0} | options
    steps = module.generate_step(mx.array([prompt]), Whole(model), None, None, **options)
    return [int(step[0]) for step in steps]


class Whole:
    """A whole model around a text model."""

    def __init__(self, language_model: Any):
        self.language_model = language_model
        self.config = getattr(language_model, "args", None) or language_model.config

    def get_input_embeddings(self, ids: Any, *_: Any, **__: Any) -> Any:
        embedded = self.language_model.model.embed_tokens(ids)
        return sys.modules["mlx_vlm.models.base"].InputEmbeddingsFeatures(inputs_embeds=embedded)


class Drafter:
    """A drafter that drafts token 0."""

    config = SimpleNamespace(block_size=3, target_layer_ids=[0], model_type="drafter")

    def __init__(self) -> None:
        self.accept_lens: list[int] = []

    def reset(self, model: Any) -> list[Any]:
        return []

    def set_shared_kv(self, *_: Any, **__: Any) -> None:
        pass

    def make_cache(self) -> list[Any]:
        return []

    def draft_block(
        self, token: Any, hidden: Any, cache: Any, size: int, *_: Any, **__: Any
    ) -> Any:
        return mx.zeros((hidden.shape[0], size - 1), mx.int32)
