"""An object with some of its parts exchanged; the object itself stays as it was."""

from __future__ import annotations

from typing import Any


class Shown:
    """An object as its release's code sees it: some of its attributes are others."""

    def __init__(self, whole: Any, **parts: Any):
        self._whole = whole
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def with_parts(module: Any, **parts: Any) -> Any:
    """A shallow copy of a module of layers with some of its parts exchanged."""
    kind: Any = type(module)
    copied = kind.__new__(kind)
    dict.update(copied, module)
    # What is found here goes before the module's parameters and before its class's methods.
    vars(copied).update(vars(module), **parts)
    return copied
