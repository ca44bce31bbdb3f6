"""GLM-4 ignores partial_rotary_factor: wrong output, even for a single request.

Why: By ``partial_rotary_factor``, RoPE applies to only the first half of each head. Releases do not
    read it in the family ``glm`` and rotate the whole head.
How: The config object keeps the factor, one half by default as in transformers; each attention
    layer's RoPE rotates that part.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: Every supported release reads the factor.
"""

from typing import Any

from ....core.verbs import Patch, after, family
from ..._shared.configs import Params, config_target

_FACTOR = "partial_rotary_factor"


def keep_factor(args: Any, params: Params) -> None:
    args.partial_rotary_factor = factor_of(params)


def factor_of(params: Params) -> float:
    rope = params.get("rope_parameters")
    nested = rope.get(_FACTOR) if isinstance(rope, dict) else None
    return float(params.get(_FACTOR) or nested or 0.5)


def limit_rope(attention: Any, config: Any, /) -> None:
    """Limit a layer's RoPE to the part of its heads in the config."""
    factor = getattr(config, _FACTOR, None)
    if factor and attention.rope.dims == attention.head_dim:
        attention.rope.dims = int(attention.head_dim * factor)


PATCH = Patch(
    id="glm-rotary",
    every_model=True,
    wrong_solo="glm",
    targets=(
        config_target("mlx-lm", "glm", dict, keep_factor),
        config_target("mlx-vlm", "glm", dict, keep_factor),
        *after(family("glm", "GLMAttention.__init__"), limit_rope),
    ),
)
