"""Changes a token beyond the window of a tiny EmbeddingGemma whose layers all slide."""

import inspect
from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require, require_module

_CONFIG: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "vocab_size": 64,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
}
LENGTH = 30
# What a token sees through all layers: half a window per layer.
REACH = 8


def probe(target: Target) -> Result:
    """Red if a token sees one beyond its window, or a text its pad tokens."""
    require(target)
    model = build(target.module)
    tokens = mx.random.randint(3, 60, (1, LENGTH), key=mx.random.key(1))
    for far in (REACH, REACH + 1):
        changed = mx.where(mx.arange(LENGTH) == far, 1, tokens)
        off = float(mx.abs(encode(model, tokens) - encode(model, changed))[0, 0].max())
        if (off > 0) != (far == REACH):
            return Result(True, f"a change {far} tokens away changes a token by {off:.3f}")
    mask = mx.arange(LENGTH)[None] < 5
    off = float(mx.abs(encode(model, tokens, mask)[:, :5] - encode(model, tokens[:, :5])).max())
    return Result(not off < 1e-4, f"5 tokens beside {LENGTH}: off by {off:.4f}")


def build(module: str) -> Any:
    released: Any = require_module(module)
    package = import_module(module.rpartition(".")[0]) if "mlx_vlm" in module else released
    kind = getattr(package, "ModelConfig", None) or package.ModelArgs
    known = inspect.signature(kind).parameters
    mx.random.seed(0)
    return released.Model(kind(**{k: v for k, v in _CONFIG.items() if k in known}))


def encode(model: Any, tokens: Any, mask: Any = None) -> Any:
    mask = mx.ones(tokens.shape, mx.int32) if mask is None else mask.astype(mx.int32)
    return model(tokens, attention_mask=mask).last_hidden_state
