"""Compares the RoPE of an attention layer with its config, for each scaling."""

from typing import Any

from ....probes.kit import Result, Target, mx, own_module

LIMIT, WIDTH, HEADS, BASE, FACTOR = 16, 8, 4, 1000.0, 3.0
CONFIG = {
    "hidden_size": WIDTH * HEADS,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 16,
    "max_position_embeddings": LIMIT,
    "rope_theta": BASE,
}
# A position within the length of training; one that the number of heads moves beyond it; and one
# beyond it.
WITHIN, NEAR, BEYOND = 3, LIMIT - 2, 2 * LIMIT
TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if RoPE of a token differs from its config."""
    module = own_module(target)
    worst = max(
        measure_difference(module, kind, place)
        for kind in ("none", "linear", "dynamic")
        for place in (WITHIN, NEAR, BEYOND)
    )
    return Result(not worst <= TOLERANCE, f"heads are off by {worst:.2g}", worst)


def measure_difference(module: Any, kind: str, place: int) -> float:
    """The difference of a layer's RoPE at a position from the config's."""
    x = mx.random.normal((1, HEADS, 1, WIDTH), key=mx.random.key(0))
    scale = 1 / FACTOR if kind == "linear" else 1.0
    length = max(place + 1, LIMIT)
    growth = FACTOR * length / LIMIT - (FACTOR - 1) if kind == "dynamic" else 1.0
    base = BASE * growth ** (WIDTH / (WIDTH - 2))
    expected = mx.fast.rope(x, WIDTH, traditional=False, base=base, scale=scale, offset=place)
    return float(mx.abs(make_layer(module, kind).rope(x, offset=place) - expected).max().item())


def make_layer(module: Any, kind: str) -> Any:
    config = getattr(module, "ModelArgs", None) or module.ModelConfig
    scaling = None if kind == "none" else {"rope_type": kind, "type": kind, "factor": FACTOR}
    return module.Attention(
        config.from_dict({"model_type": "internlm", **CONFIG, "rope_scaling": scaling})
    )
