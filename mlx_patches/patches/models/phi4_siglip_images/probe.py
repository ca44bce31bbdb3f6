"""Runs the parts of the tower, with tiny sizes."""

from ....probes.kit import Result, Target, import_module, module_of, require
from ....probes.siglip2 import SIDE, probe_padding, probe_positions

PATCH_SIZE = 2


def probe(target: Target) -> Result:
    """Red if positions are not interpolated bilinearly, or if padding changes an image."""
    require(target)
    if target.name.endswith("resize_positional_embeddings"):
        return probe_positions(module_of(target))
    config = import_module("mlx_vlm.models.phi4_siglip.config").VisionConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_patches=SIDE**2,
        patch_size=PATCH_SIZE,
    )
    return probe_padding(module_of(target).VisionModel(config), PATCH_SIZE)
