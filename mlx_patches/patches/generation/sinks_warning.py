"""``max_kv_size`` means another thing in a batch than alone, and nobody says so.

Why
    Alone, a cache of limited size keeps the first four tokens, to which attention clings, and
    the newest. A batch's window has no place for them: ``BatchGenerator(max_kv_size=...)``
    forgets them as soon as a row is longer, and its text drifts from what it says alone.
How
    One warning, when such a generator is made. The window itself is left as it is; where
    ``rotating-keep`` gives it a place for first tokens, nothing is said.
Upstream
    Not repaired in mlx-lm 0.32.2.
Retire when
    mlx-lm's ``BatchRotatingKVCache`` keeps first tokens.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target

logger = logging.getLogger("mlx_patches")


def warns(init: Callable[..., None]) -> Callable[..., None]:
    """A generator's ``__init__`` that says what a limited size means for a batch."""
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
    """Whether rows are made with a place for first tokens, and a batch has one too."""
    batch = sys.modules["mlx_lm.models.cache"].BatchRotatingKVCache
    return hasattr(batch, "keep") and not hasattr(generator, "_make_new_cache")


def warn(size: int) -> None:
    """Say what a batch keeps of rows that are longer than this."""
    logger.warning(
        "mlx_patches: BatchGenerator(max_kv_size=%s) keeps the newest tokens of each row, and not"
        " the first four as generate() does: longer rows will differ",
        size,
    )


PATCH = Patch(
    id="sinks-warning",
    summary="a batch with max_kv_size forgets a row's first tokens, and says nothing",
    targets=(Target("mlx-lm", "mlx_lm.generate", "BatchGenerator.__init__", warns),),
    probe="mlx_patches.probes.sinks_warning:probe",
    module=__name__,
)
