"""mlx-lm: only warns that a batch with max_kv_size drops the first tokens.

Why
    For a single request, a cache of limited size keeps the first four tokens, the attention sinks,
    and the newest. A batch's window has no place for first tokens:
    ``BatchGenerator(max_kv_size=...)`` drops them as soon as a row is longer, and its output
    differs from the single request's.
How
    The patch logs one warning per size when such a generator is made, and does not change the
    window. If the ``rotating-keep`` patch lets the window keep first tokens, nothing is logged.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    mlx-lm's ``BatchRotatingKVCache`` keeps first tokens.
"""

import logging
import sys
from functools import cache
from typing import Any

from ....core.verbs import Patch, after

logger = logging.getLogger("mlx_patches")


def warn_if_limited(generator: Any, /, max_kv_size: Any) -> None:
    """Warn if a generator's limited size drops first tokens."""
    if max_kv_size is not None and not keeps_first(generator):
        warn(max_kv_size)


def keeps_first(generator: Any) -> bool:
    batch = sys.modules["mlx_lm.models.cache"].BatchRotatingKVCache
    return hasattr(batch, "keep") and not hasattr(generator, "_make_new_cache")


@cache
def warn(size: int) -> None:
    logger.warning(
        "mlx_patches: BatchGenerator(max_kv_size=%s) keeps the newest tokens of each row, and not"
        " the first four as generate() does: longer rows will differ",
        size,
    )


PATCH = Patch(
    id="sinks-warning",
    severity="feature",
    every_model=True,
    targets=after("mlx_lm.generate:BatchGenerator.__init__", warn_if_limited),
)
