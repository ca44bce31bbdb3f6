"""mlx-vlm: top_p sampling crashes in a batch.

Why: The function sorts the tokens of all rows, but then reorders them as if there were one row.
    Several rows raise "Cannot squeeze axis 0 with size 2".
How: A batch is sampled row by row.
Upstream: mlx-vlm 0.5.0 reorders each row by its own order.
Retire when: No supported release is older than mlx-vlm 0.5.
"""

from typing import Any

from ....core.verbs import Patch, by_rows


def has_several_rows(logits: Any, /) -> bool:
    return bool(logits.ndim == 2 and logits.shape[0] > 1)


PATCH = Patch(
    id="top-p-rows",
    severity="crash",
    targets=by_rows("mlx_vlm.sample_utils:top_p_sampling", has_several_rows),
)
