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

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import at, models


def built(init: Callable[..., Any], attention: Any, *args: Any, **kwargs: Any) -> None:
    """Construct an attention layer."""
    init(attention, *args, **kwargs)
    if lacks_rope(attention):
        attention.use_qk_norm = False


def lacks_rope(attention: Any) -> bool:
    """Whether a layer knows no positions."""
    return not attention.use_rope


PATCH = Patch(
    id="nope-norm",
    every_model=True,
    wrong_alone="llama4_text",
    changes_alone=True,
    summary="MobileLLM's layers without positions normalize their queries and keys",
    targets=at(models("llama4_text"), {"Attention.__init__": around(built)}),
)
