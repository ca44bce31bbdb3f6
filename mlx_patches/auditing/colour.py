"""Decides whether the command line prints in colour, without the slow import of rich."""

import os


def in_colour() -> bool:
    """Whether to print colours and bold type."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
