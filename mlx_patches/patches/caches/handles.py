"""Cache state is read through a fresh handle: nobody's copy moves when the cache does.

``mx.array`` has in-place ``+=``, so two names for one array object move together. A handle is
a new Python object on the same graph node (``array.__copy__``, 40 ns, no operation); what a
reader holds is then its own. ``self.offset += n`` still works: it reads a handle, advances
it, and stores it.
"""

from __future__ import annotations

from typing import Any

from ...core.patch import Attribute, Factory, stored


def handle(value: Any) -> Any:
    """A new object on the same graph node for an array; anything else as it is."""
    return value.__copy__() if hasattr(value, "dtype") else value


def read_through_handle(name: str) -> Factory:
    """Factory that adds an attribute whose readers each get a handle of their own.

    Values stay in the instance's ``__dict__`` under their own name.
    """

    def read(instance: Any) -> Any:
        try:
            return instance.__dict__[name].__copy__()
        except (AttributeError, KeyError):  # an int, None, or nothing there yet
            return stored(instance, name)

    return lambda original: Attribute(name, read)
