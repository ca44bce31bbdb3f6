from dataclasses import dataclass, field

from mlx_patches.lab.shrink import LAYERS, WINDOW, shrink_config


@dataclass
class Args:
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int | None = None
    sliding_window: int | None = None
    num_kv_shared_layers: int = 0
    layer_types: list | None = None
    hybrid_override_pattern: str = ""
    rope_scaling: dict | None = None
    rope_parameters: dict = field(default_factory=dict)


BASE = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def small(**more):
    return shrink_config({**BASE, **more}, Args)


def test_sizes_and_layers():
    found = small(sliding_window=4096)
    assert found["num_hidden_layers"] == LAYERS
    assert (found["hidden_size"], found["num_attention_heads"]) == (128, 4)
    assert found["sliding_window"] == WINDOW
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 6
    found = small(num_hidden_layers=36, layer_types=kinds[:36])
    assert found["layer_types"] == kinds[:6]
    assert found["num_hidden_layers"] == 6
    pattern = "M-M-M-MM-*" + "M-" * 11
    assert small(hybrid_override_pattern=pattern)["hybrid_override_pattern"] == pattern[:10]

    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 8
    found = small(layer_types=kinds, num_kv_shared_layers=12)
    assert found["num_kv_shared_layers"] == 2
    assert set(found["layer_types"][:-2]) == set(kinds)


def test_rope_is_scaled():
    rope = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "factor": 4}
    found = small(rope_scaling=rope)["rope_scaling"]
    assert found == {**rope, "short_factor": [1.0] * 12, "long_factor": [2.0] * 12}
    sections = small(rope_scaling={"mrope_section": [16, 24, 24]})["rope_scaling"]
    assert sections == {"mrope_section": [4, 6, 6]}
    nested = small(
        head_dim=256, rope_parameters={"full_attention": {"mrope_section": [11, 11, 10]}}
    )
    assert nested["rope_parameters"] == {"full_attention": {"mrope_section": [2, 1, 1]}}
