"""mlx-vlm with a drafter, Qwen3.5 in a batch: wrong output if rows accept drafts unequally.

Why: Rows that accept fewer drafts than others are moved to the right, and ``finalize`` adds to
    their left padding in place. Qwen3.5 reads an array of padding once, and misses the change: such
    a row attends to the columns that it left.
How: After ``finalize``, the next read of the cache's padding gets a new array object.
Upstream: mlx-vlm 0.7.4 reads the padding at each step.
Retire when: No supported release is older than mlx-vlm 0.7.4.
"""

from typing import Any

from ....core.verbs import Patch, after, before
from ..._shared.handles import make_handle

_MARK = "_mlx_patches_moved"
_MODULE = "mlx_vlm.models.qwen3_5.language"
_READERS = ("_qwen3_5_left_padding_info", "_create_qwen3_5_attention_mask")


def mark_moved(cache: Any, /) -> None:
    setattr(cache, _MARK, True)


def is_moved(cache: Any) -> bool:
    """Whether rows were moved since the padding was read."""
    return hasattr(cache, _MARK)


def renew_padding(cache: Any) -> None:
    cache.left_padding = make_handle(cache.left_padding)
    delattr(cache, _MARK)


PATCH = Patch(
    id="vlm-draft-padding",
    every_model=True,
    targets=(
        *before([f"{_MODULE}:{one}" for one in _READERS], renew_padding, when=is_moved),
        *after("mlx_vlm.models.cache:BatchKVCache.finalize", mark_moved, supports=True),
    ),
)
