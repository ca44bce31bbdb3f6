"""Stand-ins for objects with some attributes replaced; the objects themselves do not change."""

import functools
from collections.abc import Callable
from typing import Any


class Overlay:
    """A stand-in with the attributes ``parts``, and the other attributes of ``whole``.

    It does not forward special methods, such as those that ``copy`` looks up.
    """

    def __init__(self, whole: Any, **parts: Any):
        vars(self).update(parts, _whole=whole)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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


def view(whole: Any, **parts: Callable[[Any], Any]) -> Any:
    """A proxy, an instance of the same class, whose attributes ``parts`` are computed.

    Each read calls the attribute's function with ``whole``. They cannot be set.
    """
    return view_class(*parts)(whole, parts)


def with_offset(cache: Any, offset: Any) -> Any:
    return view(cache, offset=lambda cache: offset)


@functools.cache
def view_class(*names: str) -> Any:
    """The class of views with these attributes, made on first use."""
    import wrapt  # not at start-up

    def make(proxy: Any, whole: Any, parts: dict[str, Callable[[Any], Any]]) -> None:
        wrapt.ObjectProxy.__init__(proxy, whole)
        proxy._self_parts = parts

    def read(name: str) -> property:
        return property(lambda proxy: proxy._self_parts[name](proxy.__wrapped__))

    attributes = {name: read(name) for name in names}
    return type("View", (wrapt.ObjectProxy,), {"__init__": make, **attributes})
