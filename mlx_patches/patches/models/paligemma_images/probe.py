"""Embeds a prompt with two images at its beginning, and a prompt with each single image."""

from typing import Any

from ....lab.image_scenarios import whole_of
from ....lab.whole import IMAGE, embed_prompt
from ....probes.kit import Result, Target, compare_arrays, mx, require_own, tiny_of


def probe(target: Target) -> Result:
    """Red if the second image has other features than in its own prompt."""
    tower = target._replace(module="mlx_vlm.models.paligemma.vision", name="Encoder.__call__")
    require_own(target)
    whole = whole_of(tiny_of(tower))
    vision = whole.module.config.vision_config
    count = (vision.image_size // vision.patch_size) ** 2

    def embed(*seeds: int) -> Any:
        tokens = [IMAGE] * count * len(seeds) + [1, 2]
        images = whole.images.inputs(tokens, seeds)
        return embed_prompt(whole.module, tokens, images)["inputs_embeds"][:, :-2]

    solo = mx.concatenate([embed(1), embed(2)], axis=1)
    return compare_arrays(embed(1, 2), solo, 1e-4, "image features'")
