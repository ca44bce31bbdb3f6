"""Stand-ins for objects with some attributes replaced; the objects themselves do not change."""

from __future__ import annotations

from typing import Any


class Overlay:
    """A stand-in that has the attributes ``parts``, and is ``whole`` in all else.

    Methods that Python itself looks up, as ``copy`` does, are its own.
    """

    def __init__(self, whole: Any, **parts: Any):
        vars(self).update(parts, _whole=whole)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the whole."""
        return self._whole(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._whole, name)


def with_parts(module: Any, **parts: Any) -> Any:
    """A shallow copy of an MLX module with some attributes replaced."""
    kind: Any = type(module)
    copied = kind.__new__(kind)
    dict.update(copied, module)
    # Instance attributes are found before the module's parameters and its class's methods.
    vars(copied).update(vars(module), **parts)
    return copied
