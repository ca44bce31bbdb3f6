"""Embeds an image with a tiny model whose tower has features for the language model's layers."""

from ....lab.image_scenarios import whole_of
from ....lab.whole import embed_prompt
from ....probes.kit import NotApplicable, Result, Target, require_own, tiny_of


def probe(target: Target) -> Result:
    """Red if the embedding step returns no such features."""
    require_own(target)
    if not target.module.startswith("mlx_vlm.models."):
        raise NotApplicable("the generator has no vision tower")
    whole = whole_of(tiny_of(target))
    embedded = embed_prompt(whole.module, whole.tokens, whole.images.inputs(whole.tokens, [1]))
    missing = "deepstack_visual_embeds" not in embedded
    return Result(missing, f"the features are {'missing' if missing else 'returned'}")
