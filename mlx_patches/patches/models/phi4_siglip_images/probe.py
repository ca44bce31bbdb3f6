"""Runs the parts of the tower, with tiny sizes."""

from ....probes.kit import Result, Target, import_module, module_of, require
from ....probes.siglip2 import SIDE, find_padding_error, find_position_error

PATCH_SIZE = 2


def probe(target: Target) -> Result:
    """Red if positions are not interpolated bilinearly, or if padding changes an image."""
    require(target)
    if target.name.endswith("resize_positional_embeddings"):
        off = find_position_error(module_of(target))
        return Result(off > 1e-3, f"the positions are off by {off:.2g}", off)
    config = import_module("mlx_vlm.models.phi4_siglip.config").VisionConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_patches=SIDE**2,
        patch_size=PATCH_SIZE,
    )
    off = find_padding_error(module_of(target).VisionModel(config), PATCH_SIZE)
    return Result(off > 1e-5, f"padding changes an image by {off:.2g}", off)
