"""What the environment variables say; they hold for one process and its children."""

from __future__ import annotations

import os

from ._boot import OFF

DISABLE = "MLX_PATCHES_DISABLE"
STRICT = "MLX_PATCHES_STRICT"
ALL = "all"


def disabled() -> frozenset[str]:
    """What is switched off: ids of patches, distributions that contribute some, or ``all``."""
    return frozenset(ids(DISABLE))


def ids(variable: str) -> list[str]:
    """The names in a variable, apart by commas or spaces."""
    return os.environ.get(variable, "").replace(",", " ").split()


def strict() -> bool:
    """Whether a patch that is needed and not in effect, or that fails, is an error."""
    return os.environ.get(STRICT, "").lower() not in {"", *OFF}
