"""MobileLLM's layers without positions normalize their queries and keys: texts are wrong.

Why
    ``use_qk_norm`` of ``llama4_text`` holds for the layers with a rope alone. Releases normalize
    in the layers without one too, the zeros of ``no_rope_layers``, so these attend by other
    scores. ``llama4`` itself is right.
How
    A layer that was built without a rope does not normalize.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    Every supported release normalizes in layers with a rope alone.
"""

from __future__ import annotations

from typing import Any

from ....core.patch import Patch
from ....core.verbs import after, family


def disable_norm_without_rope(attention: Any, /) -> None:
    """Turn the normalization of queries and keys off in a layer without RoPE."""
    if not attention.use_rope:
        attention.use_qk_norm = False


PATCH = Patch(
    id="nope-norm",
    every_model=True,
    wrong_alone="llama4_text",
    changes_alone=True,
    summary=(
        "MobileLLM and other llama4_text models: wrong output, NoPE layers "
        "normalize queries and keys"
    ),
    targets=after(family("llama4_text", "Attention.__init__"), disable_norm_without_rope),
)
