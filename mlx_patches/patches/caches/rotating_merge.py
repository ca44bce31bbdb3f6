"""A prompt longer than the window cannot join a batch: rotating caches do not merge.

Why
    After a prompt that was fed in one piece, a ``RotatingKVCache`` holds all of it until the
    next token. ``BatchRotatingKVCache.merge`` reserves a window and writes the whole: a
    broadcast error, and the engine dies. Where a window has wrapped it reserves what was
    written since, and dies as well.
How
    A row is merged as its last ``max_size`` tokens in their order: what it attends to from
    then on.
Upstream
    mlx-lm 0.31.2 cuts them in ``merge``.
Retire when
    No supported release is older than mlx-lm 0.31.2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around


def merged(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    """A batch of these rows."""
    return merge(cls, [one_window(row) for row in caches])


def one_window(row: Any) -> Any:
    """The cache of a row without the tokens that have left its window, the others in order."""
    size = min(row.offset, row.max_size)
    if row.keys is None or row._idx == size:
        return row
    cut = copy.copy(row)
    cut.keys, cut.values = (
        row._temporal_order(side)[:, :, -size:] for side in (row.keys, row.values)
    )
    cut._idx = size
    return cut


PATCH = Patch(
    id="rotating-merge",
    summary="a prompt longer than the window cannot join a batch",
    targets=tuple(
        Target(distribution, module, "BatchRotatingKVCache.merge", around(merged))
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
    ),
    probe="mlx_patches.probes.rotating_merge:probe",
    module=__name__,
)
