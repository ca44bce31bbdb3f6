"""``max_kv_size`` silently has another meaning in a batch than for a row alone.

Why
    Alone, a cache of limited size keeps the first four tokens, the attention sinks, and the
    newest. A batch's window has no place for first tokens: ``BatchGenerator(max_kv_size=...)``
    drops them as soon as a row is longer, and its text differs from the same row alone.
How
    The patch logs one warning when such a generator is made, and does not change the window. If
    the ``rotating-keep`` patch lets the window keep first tokens, nothing is logged.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    mlx-lm's ``BatchRotatingKVCache`` keeps first tokens.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target

logger = logging.getLogger("mlx_patches")


def warns(init: Callable[..., None]) -> Callable[..., None]:
    """A generator's ``__init__`` that warns, once, if a limited size drops first tokens."""
    signature = inspect.signature(init)
    said = False

    def __init__(generator: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal said
        init(generator, *args, **kwargs)
        size = signature.bind(generator, *args, **kwargs).arguments.get("max_kv_size")
        if size is not None and not said and not keeps_first(generator):
            said = True
            warn(size)

    return __init__


def keeps_first(generator: Any) -> bool:
    """Whether the caches of rows, and those of a batch, keep first tokens."""
    batch = sys.modules["mlx_lm.models.cache"].BatchRotatingKVCache
    return hasattr(batch, "keep") and not hasattr(generator, "_make_new_cache")


def warn(size: int) -> None:
    """Warn that a batch drops the first tokens of rows longer than ``size``."""
    logger.warning(
        "mlx_patches: BatchGenerator(max_kv_size=%s) keeps the newest tokens of each row, and not"
        " the first four as generate() does: longer rows will differ",
        size,
    )


PATCH = Patch(
    id="sinks-warning",
    severity="feature",
    every_model=True,
    summary="mlx-lm: only warns that a batch with max_kv_size drops the first tokens",
    targets=(Target("mlx-lm", "mlx_lm.generate", "BatchGenerator.__init__", warns),),
)
