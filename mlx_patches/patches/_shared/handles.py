"""Handles: new objects on the graph nodes of arrays that a release changes in place."""

from typing import Any


def make_handle(value: Any) -> Any:
    """A new object on the same graph node for an array; any other value unchanged."""
    return value.__copy__() if hasattr(value, "dtype") else value
