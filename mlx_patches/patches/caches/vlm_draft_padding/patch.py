"""mlx-vlm with a drafter, Qwen3.5 in a batch: wrong output once rows accept unequal drafts.

Why: Rows that accept fewer drafts than others are moved to the right, and ``finalize`` adds to
    their left padding in place. Qwen3.5 keeps the numbers of an array that it has read, and takes
    it for unchanged: such a row attends to the columns that it left.
How: Before ``finalize``, the cache gets a new padding array with the same values.
Upstream: mlx-vlm 0.7.10 reads the padding anew at each step.
Retire when: No supported release keeps the numbers.
"""

from typing import Any

from ....core.verbs import Patch, before
from ..._shared.handles import make_handle


def renew_padding(cache: Any, /) -> None:
    cache.left_padding = make_handle(cache.left_padding)


PATCH = Patch(
    id="vlm-draft-padding",
    every_model=True,
    targets=before("mlx_vlm.models.cache:BatchKVCache.finalize", renew_padding),
)
