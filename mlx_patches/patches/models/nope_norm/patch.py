"""MobileLLM and other llama4_text models: wrong output, NoPE layers normalize queries and keys.

Why: ``use_qk_norm`` of ``llama4_text`` applies only to layers with RoPE. Releases also normalize in
    layers without it (the zeros of ``no_rope_layers``), so their attention scores are wrong.
    ``llama4`` itself is right.
How: Layers without RoPE do not normalize.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: Every supported release normalizes only in layers with RoPE.
"""

from typing import Any

from ....core.verbs import Patch, after, family


def disable_norm_without_rope(attention: Any, /) -> None:
    if not attention.use_rope:
        attention.use_qk_norm = False


PATCH = Patch(
    id="nope-norm",
    every_model=True,
    wrong_solo="llama4_text",
    targets=after(family("llama4_text", "Attention.__init__"), disable_norm_without_rope),
)
