"""Tiny text encoders of mlx-vlm and mlx-embeddings, and their embeddings of texts."""

import inspect
from typing import Any

from .kit import import_module, mx, require_module

_TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "vocab_size": 64}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_GEMMA3 = {"query_pre_attn_scalar": 16, "max_position_embeddings": 256, "sliding_window": 8}
_MODERN_BERT = {"architectures": ["ModernBertModel"], "local_attention": 8, "embedding_dim": 16}
_CONV = {"layer_types": ["conv", "full_attention"], "conv_bias": False, "conv_L_cache": 3}
_BLOCK = {"block_dim": 32, "block_ff_dim": 48, "block_multiple_of": 8, "norm_eps": 1e-5}
_LFM2 = _CONV | _BLOCK | {"block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False}
# Every family reads its part.
_CONFIG: dict[str, Any] = {"model_type": "", "global_attn_every_n_layers": 3}
_CONFIG |= _TEXT | _HEADS | _GEMMA3 | _MODERN_BERT | _LFM2


def build_encoder(module: str, dtype: str = "float32", kind: str = "Model", **changes: Any) -> Any:
    """A tiny model of a family's module, with the same weights each time; ``kind``: its class."""
    from mlx.utils import tree_map

    released: Any = require_module(module)
    config = import_module(module.rpartition(".")[0]) if "mlx_vlm" in module else released
    make = getattr(config, "ModelConfig", None) or config.ModelArgs
    known = inspect.signature(make).parameters
    mx.random.seed(0)
    fields = {k: v for k, v in (_CONFIG | changes).items() if k in known}
    model = getattr(released, kind)(make(**fields))
    model.eval()
    model.update(tree_map(lambda weight: weight.astype(getattr(mx, dtype)), model.parameters()))
    return model


def compare_with_solo(model: Any, length: int, short: int, left: bool = False) -> float:
    """The largest difference of a text's embedding beside a longer one from its solo run, or NaN.

    ``left``: the side of the pad tokens.
    """
    tokens = mx.random.randint(3, 60, (2, length), key=mx.random.key(length))
    mask = mx.arange(length)[None] < mx.array([[length], [short]])
    part = slice(-short, None) if left else slice(short)
    mask = mask[:, ::-1] if left else mask
    batch = embed(model, mx.where(mask, tokens, 0), mask)[1]
    solo = embed(model, tokens[1:, part], mx.ones((1, short)))[0]
    if batch.ndim > 1:  # a vector for each token
        batch = batch[part]
    return float(mx.abs(batch - solo).max())


def embed(model: Any, tokens: Any, mask: Any) -> Any:
    """The embeddings of texts, in float32."""
    found = model(tokens, attention_mask=mask.astype(mx.int32)).text_embeds
    return found.astype(mx.float32)
