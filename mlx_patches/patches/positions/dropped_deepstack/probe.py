"""Embeds an image with a tiny model whose tower has features for the language model's layers."""

from ....lab.image_scenarios import whole_of
from ....lab.whole import embed_prompt
from ....probes.kit import Result, Target, require_own, tiny


def probe(target: Target) -> Result:
    """Red if the embedding step returns no such features."""
    require_own(target)
    whole = whole_of(tiny("mlx-vlm", target.module.split(".")[2]))
    embedded = embed_prompt(whole.module, whole.tokens, whole.images.inputs(whole.tokens, [1]))
    missing = "deepstack_visual_embeds" not in embedded
    return Result(missing, f"the features are {'missing' if missing else 'returned'}")
