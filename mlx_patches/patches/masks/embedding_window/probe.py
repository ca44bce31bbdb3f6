"""Changes a token beyond the window of a tiny EmbeddingGemma whose layers all slide."""

from typing import Any

from ....probes.encoders import build_encoder, compare_with_solo
from ....probes.kit import Result, Target, mx, require

LENGTH = 30
# The tokens that one sees on a side through all layers: half a window per layer.
REACH = 8


def probe(target: Target) -> Result:
    """Red if a token sees one beyond its window, or a text its pad tokens."""
    require(target)
    model = build_encoder(target.module, num_hidden_layers=2, sliding_window_pattern=3)
    tokens = mx.random.randint(3, 60, (1, LENGTH), key=mx.random.key(1))
    for far in (REACH, REACH + 1):
        changed = mx.where(mx.arange(LENGTH) == far, 1, tokens)
        off = float(mx.abs(encode(model, tokens) - encode(model, changed))[0, 0].max())
        if (off > 0) != (far == REACH):
            return Result(True, f"a change {far} tokens away changes a token by {off:.3f}")
    off = compare_with_solo(model, LENGTH, 5)
    return Result(not off < 1e-4, f"5 tokens beside {LENGTH}: off by {off:.4f}")


def encode(model: Any, tokens: Any) -> Any:
    return model(tokens, attention_mask=mx.ones(tokens.shape, mx.int32)).last_hidden_state
