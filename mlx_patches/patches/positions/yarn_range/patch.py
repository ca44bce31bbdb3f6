"""gpt-oss ignores `truncate: false`: wrong YaRN frequencies for every request.

Why: YaRN scales the slow frequencies of a head, keeps the fast ones, and mixes the two in between.
    With ``"truncate": false``, as in gpt-oss, the bounds of that range are fractions. Releases
    round them to whole numbers, so a third of a head's frequencies are wrong, and the error of the
    positions grows with the length of the text.
How: The attention layer's RoPE gets the frequencies of the range in the config.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: Every supported release reads ``truncate``.
"""

import math
from typing import Any

from ....core.verbs import Patch, after, family, mx


def set_frequencies(attention: Any, config: Any, /) -> None:
    scaling = config.rope_scaling
    if isinstance(scaling, dict) and scaling.get("truncate") is False:
        rope = attention.rope
        rope._freqs = compute_frequencies(rope.dims, float(config.rope_theta), scaling)


def compute_frequencies(dims: int, base: float, scaling: dict[str, Any]) -> Any:
    """The wavelengths of a head's pairs of dimensions (dims / 2,), divided by two pi."""
    original = scaling["original_max_position_embeddings"]

    def find_pair(turns: float) -> float:
        """The index of the pair with this many turns in the original context."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(find_pair(scaling.get("beta_fast", 32)), 0)
    high = min(find_pair(scaling.get("beta_slow", 1)), dims - 1)
    slow = mx.clip((mx.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    fast = base ** (mx.arange(0, dims, 2) / dims)
    return fast / (1 - slow + slow / scaling["factor"])


PATCH = Patch(
    id="yarn-range",
    every_model=True,
    wrong_solo="gpt_oss",
    targets=after(family("gpt_oss", "AttentionBlock.__init__"), set_frequencies),
)
