"""Gemma 4 in mlx-vlm 0.4.3: full attention has wrong RoPE positions, so texts are wrong.

Why: A quarter of each head is rotated, in pairs half a head apart, by the first frequencies of the
    whole head. mlx-vlm 0.4.3 rotates only the head's first quarter, by frequencies of that width.
How: An attention layer of this kind gets a RoPE of the whole head, whose other frequencies are 0.
Upstream: mlx-vlm 0.4.4 builds this RoPE.
Retire when: No supported release is older than mlx-vlm 0.4.4.
"""

from functools import partial
from typing import Any

from ....core.verbs import Patch, after, mx


def replace_rope(attention: Any, config: Any, /) -> None:
    """Give an attention layer the RoPE that its config names."""
    options = config.rope_parameters.get(attention.layer_type, {})
    if options.get("rope_type") == "proportional":
        attention.rope = partial(rotate, make_wavelengths(attention.head_dim, **options))


def make_wavelengths(
    width: int, rope_theta: float, partial_rotary_factor: float = 1.0, **_: Any
) -> Any:
    """The inverse frequencies of a head's pairs; infinite if they are not rotated."""
    pairs = int(partial_rotary_factor * width // 2)
    rotated = rope_theta ** (mx.arange(0, 2 * pairs, 2, dtype=mx.float32) / width)
    return mx.concatenate([rotated, mx.full(width // 2 - pairs, mx.inf)])


def rotate(wavelengths: Any, x: Any, offset: Any = 0) -> Any:
    return mx.fast.rope(
        x, x.shape[-1], traditional=False, base=None, scale=1.0, offset=offset, freqs=wavelengths
    )


PATCH = Patch(
    id="gemma4-rope",
    every_model=True,
    wrong_solo="gemma4 gemma4_text",
    targets=after("mlx_vlm.models.gemma4.language:Attention.__init__", replace_rope),
)
