"""An entry in the ``__dict__`` of caches that follows the rows in any host.

Hosts merge, extend, filter and extract a batch's caches; the entry goes with the rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...core.verbs import Target, around, define


class RowEntry(NamedTuple):
    """An entry for a cache's rows.

    Args:
        name: the entry.
        read: returns a cache's entry, which has ``filter_rows(indices)``; None if there is none.
        write: sets a cache's entry; removes it for None.
        join: returns the entry of all rows of several caches, in their order; None if none has one.
    """

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    join: Callable[[Sequence[Any]], Any]

    def targets(self, module: str, *kinds: str) -> tuple[Target, ...]:
        """The operations on rows of these batch classes in a module of caches."""
        operations: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
            "merge": (self.merge, self.is_any),
            "extend": (self.extend, self.is_either),
            "filter": (self.filter_rows, self.is_in),
            "extract": (self.extract, self.is_in),
        }
        return tuple(
            target
            for kind in kinds
            for name, (wrapper, check) in operations.items()
            for target in define(
                f"{module}:{kind}.{name}", around(wrapper), supports=True, when=check
            )
        )

    def merge(
        self, original: Callable[..., Any], cls: Any, caches: Any, *args: Any, **kwargs: Any
    ) -> Any:
        batch = original(cls, caches, *args, **kwargs)
        self.write(batch, self.join(caches))
        return batch

    def extend(self, original: Callable[..., None], cache: Any, other: Any) -> None:
        joined = self.join((cache, other))
        original(cache, other)
        self.write(cache, joined)

    def filter_rows(self, original: Callable[..., None], cache: Any, batch_indices: Any) -> None:
        held = self.read(cache)  # read first: another patch's layer below may filter it as well
        original(cache, batch_indices)
        self.write(cache, held and held.filter_rows(batch_indices))

    def extract(self, original: Callable[..., Any], cache: Any, idx: int) -> Any:
        row = original(cache, idx)
        held = self.read(cache)
        self.write(row, held and held.filter_rows([idx]))
        return row

    def is_in(self, cache: Any, *args: Any, **kwargs: Any) -> bool:
        """Whether a cache has the entry, whatever the operation's further arguments."""
        return self.name in cache.__dict__

    def is_either(self, cache: Any, other: Any) -> bool:
        return self.name in cache.__dict__ or self.name in other.__dict__

    def is_any(self, cls: Any, caches: Sequence[Any], *args: Any, **kwargs: Any) -> bool:
        return any(map(self.is_in, caches))
