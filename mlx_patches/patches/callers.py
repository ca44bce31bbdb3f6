"""Which code a call comes from: the modules and functions on this thread's stack."""

from __future__ import annotations

import sys
from collections.abc import Iterator


def callers() -> Iterator[tuple[str, str]]:
    """The module and the function of each frame, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        names = frame.f_globals
        # ``python -m`` runs a module as ``__main__``; its spec has its name.
        module = getattr(names.get("__spec__"), "name", None) or str(names.get("__name__"))
        yield module, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
