"""A value per object, kept as long as the object exists.

For objects that cannot be keys of a ``WeakKeyDictionary``: MLX arrays and modules are not hashable,
or compare by element.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """A value per object; ``make`` returns the value of a new one. Thread-safe."""

    def __init__(self, make: Callable[[], Value]):
        self._make, self._lock = make, threading.Lock()
        # By object id.
        self._held: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def of(self, owner: Any) -> Value:
        """The object's value; a new one each time if the object allows no weak references."""
        try:
            reference, value = self._held[id(owner)]
        except KeyError:
            return self._add(owner)
        return value if reference() is owner else self._add(owner)

    def _add(self, owner: Any) -> Value:
        key = id(owner)
        with self._lock:
            found = self._held.get(key)
            if found is None or found[0]() is not owner:  # else another thread was first
                try:
                    reference = weakref.ref(owner, lambda gone: self._forget(key, gone))
                except TypeError:
                    return self._make()
                found = self._held[key] = (reference, self._make())
            return found[1]

    def _forget(self, key: int, gone: Any) -> None:
        # Another object may have the same id by now.
        if (found := self._held.get(key)) is not None and found[0] is gone:
            self._held.pop(key, None)
