"""Cache state is read through a fresh handle: nobody's copy moves when the cache does.

``mx.array`` has in-place ``+=``, so two names for one array object move together. A handle is
a new Python object on the same graph node (``x.astype(x.dtype)``, 135 ns, no operation); what
a reader holds is then its own. ``self.offset += n`` still works: it reads a handle, advances
it, and stores it.
"""

from __future__ import annotations

from typing import Any

from ..._patch import Attribute, Factory


def handle(value: Any) -> Any:
    """A new object on the same graph node for an array; anything else as it is."""
    dtype = getattr(value, "dtype", None)
    return value if dtype is None else value.astype(dtype)


class ReadThroughHandle(Attribute):
    """An attribute whose readers each get a handle of their own."""

    __slots__ = ()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The stored value's handle; the descriptor itself when read from the class."""
        if instance is None:
            return self
        try:
            value = instance.__dict__[self.name]
            return value.astype(value.dtype)
        except (AttributeError, KeyError):  # an int, None, or nothing there yet
            return super().__get__(instance, owner)


def read_through_handle(name: str) -> Factory:
    """Factory that adds such an attribute to a cache class."""
    return lambda original: ReadThroughHandle(name)
