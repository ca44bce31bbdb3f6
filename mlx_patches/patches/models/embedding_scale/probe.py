"""Calls a tiny model with tokens, and with their embeddings as in mlx-vlm's prefill."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import off_by, tiny_of
from ....probes.fixtures import cache_of


def probe(target: Target) -> Result:
    """Red if their logits differ."""
    import mlx.core as mx

    cache_of(target)
    language = tiny_of(target).module
    tokens = mx.array([[5, 9, 2, 7]])
    embedded = language.model.embed_tokens(tokens)
    expected = language(tokens, inputs_embeds=embedded).logits
    actual = language(tokens).logits
    return off_by(actual, expected, 1e-4, "logits'")
