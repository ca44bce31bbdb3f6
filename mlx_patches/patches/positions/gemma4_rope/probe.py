"""Rotates a vector of ones by the layer's RoPE, and by the definition."""

from types import SimpleNamespace

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of, require_module

WIDTH, THETA, PART, PLACE = 16, 100.0, 0.25, 3


def probe(target: Target) -> Result:
    """Red if the rotated vectors differ."""
    require_module("mlx.nn")
    rope = {"rope_type": "proportional", "rope_theta": THETA, "partial_rotary_factor": PART}
    config = SimpleNamespace(
        hidden_size=WIDTH,
        head_dim=WIDTH,
        global_head_dim=WIDTH,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_global_key_value_heads=None,
        num_hidden_layers=1,
        num_kv_shared_layers=0,
        layer_types=["full_attention"],
        attention_k_eq_v=False,
        rms_norm_eps=1e-6,
        rope_traditional=False,
        rope_parameters={"full_attention": rope},
        max_position_embeddings=64,
        sliding_window=8,
    )
    found = own_class_of(target)(config, 0).rope(mx.ones((1, 1, 1, WIDTH)), offset=PLACE)
    pairs = mx.arange(WIDTH // 2)
    angles = mx.where(pairs < PART * WIDTH / 2, PLACE * THETA ** (-2 * pairs / WIDTH), 0.0)
    cos, sin = mx.cos(angles), mx.sin(angles)
    return compare_arrays(found.reshape(-1), mx.concatenate([cos - sin, cos + sin]), 1e-5)
