"""Embeds a short text beside a long one with a tiny LFM2-ColBERT."""

from typing import Any

from ....probes.kit import Result, Target, mx, require, require_module

_CONFIG: dict[str, Any] = {
    "model_type": "lfm2_colbert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 32,
    "block_ff_dim": 48,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"],
    "max_position_embeddings": 128,
    "embedding_dim": 16,
}


def probe(target: Target) -> Result:
    """Red if the short text's embeddings are not those of its solo run."""
    require(target)
    off = compare(require_module("mlx_vlm.models.lfm2_colbert"), 17, 5)
    return Result(off > 1e-4, f"5 tokens beside 17: off by {off:.4f}")


def compare(family: Any, length: int, short: int) -> float:
    """The largest difference of the short text's embeddings from its solo run."""
    mx.random.seed(0)
    model = family.Model(family.ModelConfig.from_dict(_CONFIG))
    tokens = mx.random.randint(3, 60, (2, length))
    mask = mx.arange(length)[None] < mx.array([[length], [short]])
    batch = model(tokens, attention_mask=mask.astype(mx.int32)).text_embeds[1, :short]
    solo = model(tokens[1:, :short], attention_mask=mx.ones((1, short), mx.int32)).text_embeds[0]
    return float(mx.abs(batch - solo).max())
