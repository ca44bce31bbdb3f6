"""Runs a vision encoder, and a cross-attention layer with a token that sees no image."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of

TOKENS, WIDTH = 3, 8


def probe(target: Target) -> Result:
    """Red if the first state is not the encoder's input, or the token changes."""
    mx.random.seed(0)
    given = mx.random.normal((1, TOKENS, WIDTH))
    kind = own_class_of(target)
    return probe_layer(kind, given) if "Layer" in target.name else probe_states(kind, given)


def probe_states(kind: Any, given: Any) -> Result:
    encoder = SimpleNamespace(layers=[lambda states, **_: 2 * states] * 2)
    _, states = kind.__call__(encoder, given)
    return compare_arrays(states[0], given, 0.0)


def probe_layer(kind: Any, given: Any) -> Result:
    config = SimpleNamespace(
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_attention_heads=2,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
    )
    layer = kind(config, 0)
    layer.cross_attn_attn_gate = mx.ones(1)
    rows = mx.array([False, True, True])[None, None, :, None]
    found = layer(given, given, full_text_row_masked_out_mask=rows)
    return compare_arrays(found[:, 0], given[:, 0], 0.0)
