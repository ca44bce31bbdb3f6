"""Embeds a prompt with two images between texts, and a prompt that begins with each image."""

from collections.abc import Sequence
from typing import Any

from ....lab.image_scenarios import whole_of
from ....lab.whole import IMAGE, embed_prompt
from ....probes.kit import Result, Target, compare_arrays, mx, require_own, tiny_of


def probe(target: Target) -> Result:
    """Red if an image's features depend on its place in the prompt."""
    tower = target._replace(module="mlx_vlm.models.paligemma.vision", name="Encoder.__call__")
    require_own(target)
    whole = whole_of(tiny_of(tower))
    vision = whole.module.config.vision_config
    count = (vision.image_size // vision.patch_size) ** 2

    def embed(*seeds: int, before: Sequence[int] = ()) -> Any:
        tokens = [*([*before, *[IMAGE] * count] * len(seeds)), 1, 2]
        images = whole.images.inputs(tokens, seeds)
        found = embed_prompt(whole.module, tokens, images)["inputs_embeds"]
        return found[:, mx.array([place for place, one in enumerate(tokens) if one == IMAGE])]

    solo = mx.concatenate([embed(1), embed(2)], axis=1)
    joined = mx.concatenate([embed(1, 2), embed(1, 2, before=(1,))])
    return compare_arrays(joined, mx.broadcast_to(solo, joined.shape), 1e-4, "image features'")
