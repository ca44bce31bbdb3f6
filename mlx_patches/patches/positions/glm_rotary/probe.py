"""Reads a small GLM config with partial RoPE, and checks which dimensions RoPE changes."""

from ....probes.kit import Result, Target, config_class, import_module, mx, tiny_of

_HEAD = 16
_LAYERS = {"mlx-lm": "mlx_lm.models.glm", "mlx-vlm": "mlx_vlm.models.glm.language"}


def probe(target: Target) -> Result:
    """Red if RoPE changes a dimension of the second half."""
    layers = import_module(_LAYERS[target.distribution])
    kind = config_class(target.distribution, "glm")
    config = {**tiny_of(target).config, "head_dim": _HEAD}
    x = mx.ones((1, 1, 1, _HEAD))
    for named in (
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ):
        attention = layers.GLMAttention(kind.from_dict({**config, **named}))
        rotated = attention.rope(x, offset=5) != x
        if not mx.array_equal(rotated.reshape(-1), mx.arange(_HEAD) < _HEAD // 2).item():
            return Result(True, f"{rotated.sum().item()} of {_HEAD} dimensions are rotated")
    return Result(False, "half of a head is rotated")
