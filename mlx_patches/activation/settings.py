"""What the environment variables say; they hold for one process and its children."""

from __future__ import annotations

import os

from . import boot
from .boot import OFF, ON, SWITCH

DISABLE = "MLX_PATCHES_DISABLE"
ENABLE = "MLX_PATCHES_ENABLE"
STRICT = "MLX_PATCHES_STRICT"
PROFILE = "MLX_PATCHES_PROFILE"
PRESENCE = "MLX_PATCHES_PS"
ALL = "all"
# Of a value that a message repeats.
MAX_VALUE = 40


def off() -> bool:
    """Whether nothing may activate by itself; ``apply()`` is a program's own word, and goes on."""
    return boot.switch() is False


def junk() -> str:
    """What is wrong with ``MLX_PATCHES``, a sentence; empty where it can be read."""
    value = os.environ.get(SWITCH, "").strip()
    if not value or value.lower() in ON | OFF:
        return ""
    return (
        f"{SWITCH} is {value[:MAX_VALUE]!r}, which is neither on (1, true, yes, on) nor off (0,"
        " false, no, off): nothing activates by itself"
    )


def warn_of_junk() -> None:
    """Log it, where there is something."""
    if problem := junk():
        import logging  # not at start-up

        logging.getLogger("mlx_patches").warning("mlx_patches: %s", problem)


def without_us() -> dict[str, str]:
    """The environment of a child process that has no patches but those that it asks for itself."""
    return {**os.environ, SWITCH: "0"}


def disabled() -> frozenset[str]:
    """What is switched off: ids of patches, distributions that contribute some, or ``all``."""
    return frozenset(_names(DISABLE))


def enabled() -> list[str]:
    """The optional patches that are asked for, by id."""
    return _names(ENABLE)


def presence() -> bool:
    """Whether ``mlx-patches ps`` may know of this process."""
    return os.environ.get(PRESENCE, "").strip().lower() not in OFF


def profile() -> str:
    """The profiles that the environment asks for; empty where it has no word."""
    return os.environ.get(PROFILE, "").strip()


def strict() -> bool:
    """Whether a patch that is needed and not in effect, or that fails, is an error."""
    return os.environ.get(STRICT, "").strip().lower() not in {"", *OFF}


def _names(variable: str) -> list[str]:
    return os.environ.get(variable, "").replace(",", " ").split()
