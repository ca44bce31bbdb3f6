"""Whether the command line may print in colour; without rich, which takes long to import."""

from __future__ import annotations

import os


def in_colour() -> bool:
    """Whether a terminal may be sent colours and bold type."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
