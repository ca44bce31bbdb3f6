"""Embeds a short text beside a long one with a tiny LFM2-ColBERT."""

from ....probes.encoders import build_encoder, compare_with_solo
from ....probes.kit import Result, Target, require

MODULE = "mlx_vlm.models.lfm2_colbert.lfm2_colbert"


def probe(target: Target) -> Result:
    """Red if the short text's embeddings are not those of its solo run."""
    require(target)
    off = compare_with_solo(build_encoder(MODULE, num_hidden_layers=2), 17, 5)
    return Result(off > 1e-4, f"5 tokens beside 17: off by {off:.4f}")
