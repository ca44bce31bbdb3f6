"""Embeds a short text beside a long one with a tiny model, in each type."""

import inspect
from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require

_CONFIG: dict[str, Any] = {
    "model_type": "",
    "architectures": ["ModernBertModel"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "local_attention": 8,
    "global_attn_every_n_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
_LENGTHS = ((40, 3), (40, 1), (17, 16), (9, 9))  # of the long text, and of the short one
TYPES = ("float32", "float16", "bfloat16")


def probe(target: Target) -> Result:
    """Red if the short text's embedding is not that of its solo run."""
    require(target)
    worst = 0.0
    for name in TYPES:
        model = build(target.module, name)
        for length, short in _LENGTHS:
            off = compare(model, length, short)
            if not off < 0.02:
                return Result(True, f"{name}, {short} tokens beside {length}: off by {off}")
            worst = max(worst, off)
    return Result(False, f"off by at most {worst:.4f}")


def build(module: str, dtype: str) -> Any:
    from mlx.utils import tree_map

    released: Any = import_module(module)
    config = import_module(module.rpartition(".")[0]) if "mlx_vlm" in module else released
    kind = getattr(config, "ModelConfig", None) or config.ModelArgs
    known = inspect.signature(kind).parameters
    mx.random.seed(0)
    model = released.Model(kind(**{k: v for k, v in _CONFIG.items() if k in known}))
    model.eval()
    model.update(tree_map(lambda weight: weight.astype(getattr(mx, dtype)), model.parameters()))
    return model


def compare(model: Any, length: int, short: int) -> float:
    """The largest difference of the short text's embedding from its solo run; NaN if it is NaN."""
    tokens = mx.random.randint(3, 60, (2, length), key=mx.random.key(length))
    mask = mx.arange(length)[None] < mx.array([[length], [short]])
    if is_left_padded := "qwen3" in type(model).__module__:
        mask = mask[:, ::-1]
    batch = embed(model, mx.where(mask, tokens, 0), mask)[1]
    text = tokens[1:, -short:] if is_left_padded else tokens[1:, :short]
    solo = embed(model, text, mx.ones(text.shape))[0]
    return float(mx.abs(batch - solo).max())


def embed(model: Any, tokens: Any, mask: Any) -> Any:
    """The embeddings of texts, in float32."""
    found = model(tokens, attention_mask=mask.astype(mx.int32)).text_embeds
    return found.astype(mx.float32)
