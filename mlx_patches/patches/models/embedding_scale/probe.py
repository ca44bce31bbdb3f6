"""Gives a tiny model tokens, and the embeddings of the same tokens as mlx-vlm's prefill does."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import cache_of


def probe(target: Target) -> Result:
    """Red where their logits differ."""
    import mlx.core as mx

    from ....lab import Family, NotBuilt
    from ....lab.build import build

    cache_of(target)
    try:
        language = build(Family(target.distribution, target.module.split(".")[2])).module
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    tokens = mx.array([[5, 9, 2, 7]])
    embedded = language.model.embed_tokens(tokens)
    wanted = language(tokens, inputs_embeds=embedded).logits
    said = language(tokens).logits
    worst = (mx.abs(said - wanted).max() / mx.abs(wanted).max()).item()
    return Result(not worst <= 1e-4, f"off by {worst:.2g} of the logits' scale", worst)
