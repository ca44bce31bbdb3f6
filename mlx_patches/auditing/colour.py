"""Decides whether the command line prints in colour, without the slow import of rich."""

import os


def in_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
