"""A view of a cache with another ``offset`` than the cache's own."""

from __future__ import annotations

import functools
from typing import Any


def with_offset(cache: Any, offset: Any) -> Any:
    """A view of a cache that returns this ``offset``; everything else is the cache's own."""
    return view_class()(cache, offset)


@functools.cache
def view_class() -> Any:
    """The class of these views, made on first use."""
    import wrapt  # not at start-up

    class OffsetView(wrapt.ObjectProxy[Any]):
        def __init__(self, cache: Any, offset: Any):
            super().__init__(cache)
            self._self_offset = offset

        @property
        def offset(self) -> Any:
            return self._self_offset

    return OffsetView
