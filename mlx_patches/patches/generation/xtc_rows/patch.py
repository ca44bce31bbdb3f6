"""mlx-lm and mlx-vlm: XTC sampling in a batch removes tokens by another row's threshold.

Why: XTC removes all tokens above a threshold except the least probable of them. Releases search for
    that token in the whole batch, so a row may lose all of its top choices.
How: A batch is processed row by row; each row draws whether XTC applies.
Upstream: mlx-lm 0.32.0 searches in each row. Not fixed in mlx-vlm 0.7.10.
Retire when: No supported release searches in the whole batch.
"""

from typing import Any

from ....core.verbs import Patch, by_rows, everywhere


def has_several_rows(logits: Any, /) -> bool:
    return bool(logits.ndim > 1 and logits.shape[0] > 1)


PATCH = Patch(
    id="xtc-rows",
    targets=by_rows(everywhere("sample_utils:apply_xtc"), has_several_rows),
)
