"""gpt-oss rotates its heads by other frequencies than in training: ``truncate`` is ignored.

Why
    YaRN scales the slow frequencies of a head, keeps the fast ones, and mixes the two in between.
    The config of gpt-oss says ``"truncate": false``: the range in between ends at fractions.
    Releases round it to whole numbers, so the frequencies of a third of the head are wrong; the
    longer the text, the farther off are its positions.
How
    The attention layer's rope gets the frequencies of the range as the config has it.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    Every supported release reads ``truncate``.
"""

from __future__ import annotations

import math
from typing import Any

from ....core.patch import Patch
from ....core.verbs import after, family


def set_frequencies(attention: Any, config: Any, /) -> None:
    """Give a layer's rope the frequencies of its config."""
    scaling = config.rope_scaling
    if isinstance(scaling, dict) and scaling.get("truncate") is False:
        rope = attention.rope
        rope._freqs = compute_frequencies(rope.dims, float(config.rope_theta), scaling)


def compute_frequencies(dims: int, base: float, scaling: dict[str, Any]) -> Any:
    """The wave lengths of a head's pairs of dimensions (dims / 2,), over two pi."""
    import mlx.core as mx

    original = scaling["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """The place of the pair that turns this often in the original context."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(pair(scaling.get("beta_fast", 32)), 0)
    high = min(pair(scaling.get("beta_slow", 1)), dims - 1)
    slow = mx.clip((mx.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    fast = base ** (mx.arange(0, dims, 2) / dims)
    return fast / (1 - slow + slow / scaling["factor"])


PATCH = Patch(
    id="yarn-range",
    every_model=True,
    wrong_alone="gpt_oss",
    changes_alone=True,
    summary="gpt-oss ignores `truncate: false`: wrong YaRN frequencies for every request",
    targets=after(family("gpt_oss", "AttentionBlock.__init__"), set_frequencies),
)
