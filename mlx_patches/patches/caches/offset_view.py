"""A cache that is seen with another offset than its own."""

from __future__ import annotations

import functools
from typing import Any


def with_offset(cache: Any, offset: Any) -> Any:
    """A view of a cache: what it holds and does is the cache's own, but for ``offset``."""
    return view_class()(cache, offset)


@functools.cache
def view_class() -> Any:
    """The class of such views."""
    import wrapt  # not at start-up

    class OffsetView(wrapt.ObjectProxy[Any]):
        def __init__(self, cache: Any, offset: Any):
            super().__init__(cache)
            self._self_offset = offset

        @property
        def offset(self) -> Any:
            return self._self_offset

    return OffsetView
