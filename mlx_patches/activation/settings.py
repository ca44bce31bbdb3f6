"""Reads the environment variables, which apply to one process and its children."""

import os

# Switches activation on or off for one process and its children, overriding `enable`.
SWITCH = "MLX_PATCHES"
ON = {"1", "true", "yes", "on"}
OFF = {"0", "false", "no", "off"}
# The profile of processes that `enable` and `run` start.
SAFE = "safe"
DISABLE = "MLX_PATCHES_DISABLE"
ENABLE = "MLX_PATCHES_ENABLE"
STRICT = "MLX_PATCHES_STRICT"
PROFILE = "MLX_PATCHES_PROFILE"
PRESENCE = "MLX_PATCHES_PS"
ALL = "all"
# How many characters of a value a message quotes.
MAX_VALUE = 40


def off() -> bool:
    """Whether automatic activation is switched off; a program's own ``apply()`` still works."""
    return switch() is False


def switch() -> bool | None:
    """True if ``MLX_PATCHES`` is on, None if it is not set, False for any other value."""
    value = os.environ.get(SWITCH, "").strip().lower()
    return value in ON if value else None


def junk() -> str:
    """A sentence about an unknown value of ``MLX_PATCHES``; empty if it is known."""
    value = os.environ.get(SWITCH, "").strip()
    if not value or value.lower() in ON | OFF:
        return ""
    return (
        f"{SWITCH} is {value[:MAX_VALUE]!r}, an unknown value; use 1 or 0."
        " Automatic activation is off"
    )


def warn_of_junk() -> None:
    if problem := junk():
        import logging  # not at start-up

        logging.getLogger("mlx_patches").warning("mlx_patches: %s", problem)


def read_disabled() -> frozenset[str]:
    """The names that are switched off: patch ids, contributing distributions, or ``all``."""
    return frozenset(_names(DISABLE))


def read_enabled() -> list[str]:
    return _names(ENABLE)


def presence() -> bool:
    """Whether ``mlx-patches ps`` may list this process."""
    return os.environ.get(PRESENCE, "").strip().lower() not in OFF


def profile() -> str:
    """The profiles that ``MLX_PATCHES_PROFILE`` names; empty if it names none."""
    return os.environ.get(PROFILE, "").strip()


def strict() -> bool:
    """Whether needed patches that are not in effect, or that fail, raise an error."""
    return os.environ.get(STRICT, "").strip().lower() not in {"", *OFF}


def _names(variable: str) -> list[str]:
    return os.environ.get(variable, "").replace(",", " ").split()
