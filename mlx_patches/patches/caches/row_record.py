"""What the patches know of each row of a cache: one record, that follows its rows.

A batch's caches are merged, extended, filtered, extracted, copied, saved and restored row by
row, by every host. The record lies in the first cache's ``__dict__``, goes through each of these
with its rows, and so follows a row in any host, with no plumbing.

In memory it rides on ``state`` and ``meta_state``, as an attribute of the tuple, list or empty
text that the release returns. In a file it is in the metadata that ``save_prompt_cache`` takes
from its caller: the release alone hands that over to whoever asks for it, and reads the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.patch import Target, around

RECORD = "_mlx_patches_rows"
# Of the numbers that a record holds for each row.
_COLUMNS = ("deltas", "lengths")


# Not compared by value: that would read its arrays from the device.
@dataclass(frozen=True, slots=True, eq=False)
class RowRecord:
    """What is known of each row of a cache. It is never changed: copies of a cache share it.

    Args:
        deltas: rope deltas, (rows, 1); None where no row has one.
        lengths: how many tokens each row's prompt has, (rows, 1), 0 where that is not known;
            None where it is of no row.
        prompts: of each row the image prompt that it is being fed, else None; empty where no
            row is being fed one.
    """

    deltas: Any = None
    lengths: Any = None
    prompts: tuple[Any, ...] = ()

    def filter_rows(self, indices: Any) -> RowRecord:
        """The record of these rows, ``indices`` being a list or an array of numbers."""
        columns = {name: held[indices] for name, held in self.columns().items()}
        prompts: tuple[Any, ...] = ()
        if self.prompts:
            kept = indices.tolist() if hasattr(indices, "tolist") else indices
            prompts = tuple(self.prompts[row] for row in kept)
        return RowRecord(**columns, prompts=prompts if any(prompts) else ())

    def extract_row(self, row: int) -> RowRecord:
        """The record of one row."""
        columns = {name: held[row : row + 1] for name, held in self.columns().items()}
        prompts = self.prompts[row : row + 1]
        return RowRecord(**columns, prompts=prompts if any(prompts) else ())

    def columns(self) -> dict[str, Any]:
        """The arrays (rows, 1) that there are, by name."""
        held = {name: getattr(self, name) for name in _COLUMNS}
        return {name: column for name, column in held.items() if column is not None}

    @property
    def empty(self) -> bool:
        """Whether it says nothing of any row."""
        return not (self.columns() or self.prompts)


_NOTHING = RowRecord()


def read_record(cache: Any) -> RowRecord | None:
    """The record of a cache's rows, or None."""
    record: RowRecord | None = cache.__dict__.get(RECORD)
    return record


def write_record(cache: Any, record: RowRecord | None) -> None:
    """Have a cache carry this record, or none."""
    if record is None or record.empty:
        cache.__dict__.pop(RECORD, None)
    else:
        cache.__dict__[RECORD] = record


def update_record(cache: Any, **changes: Any) -> None:
    """Change some fields of a cache's record."""
    write_record(cache, replace(read_record(cache) or _NOTHING, **changes))


def read_column(cache: Any, name: str, rows: int) -> Any:
    """The deltas or the lengths (rows, 1) of a cache's rows; None where there are none.

    Nor of another number of rows: a quantized batch is filtered without its record.
    """
    record = read_record(cache)
    column = getattr(record, name) if record else None
    return None if column is None or column.shape[0] != rows else column


def fill_column(cache: Any, name: str, rows: int) -> Any:
    """The same, with zeros where there are none."""
    column = read_column(cache, name, rows)
    if column is None:
        import mlx.core as mx

        column = mx.zeros((rows, 1), mx.int32)
    return column


def count_rows(cache: Any) -> int:
    """How many rows a cache has."""
    if hasattr(cache, "cache"):
        state = next((state for state in cache.cache if state is not None), None)
        return 1 if state is None else int(state.shape[0])
    offset = getattr(cache, "offset", 0)
    return int(offset.size) if hasattr(offset, "size") else 1


def concatenate_records(caches: Sequence[Any]) -> RowRecord | None:
    """The record of all rows of these caches, in their order; None where no cache has one."""
    records = [read_record(cache) for cache in caches]
    if not any(records):
        return None
    import mlx.core as mx

    names = {name for record in records if record for name in record.columns()}
    columns = {
        name: mx.concatenate([fill_column(cache, name, count_rows(cache)) for cache in caches])
        for name in names
    }
    prompts: tuple[Any, ...] = ()
    for record, cache in zip(records, caches, strict=True):
        prompts += (record.prompts if record else ()) or (None,) * count_rows(cache)
    return RowRecord(**columns, prompts=prompts if any(prompts) else ())


# -- operations on rows ----------------------------------------------------------------


def merge(original: Callable[[Any, Any], Any], cls: Any, caches: Any) -> Any:
    """``merge`` that merges the rows' records."""
    batch = original(cls, caches)
    if (record := concatenate_records(caches)) is not None:
        write_record(batch, record)
    return batch


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """``extend`` that extends the record."""
    record = concatenate_records((cache, other))
    original(cache, other)
    if record is not None:
        write_record(cache, record)


def filter_rows(original: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """``filter`` that filters the record."""
    record = read_record(cache)  # before: two patches may filter it
    original(cache, batch_indices)
    if record is not None:
        write_record(cache, record.filter_rows(batch_indices))


def extract(original: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """``extract`` that extracts the row's record."""
    row = original(cache, idx)
    if (record := read_record(cache)) is not None:
        write_record(row, record.extract_row(idx))
    return row


# -- state in memory -------------------------------------------------------------------


class _Tuple(tuple[Any, ...]):
    record: RowRecord | None = None


class _List(list[Any]):
    record: RowRecord | None = None


class _Text(str):
    # No slots: an empty text is false with an attribute too, so the release's setter takes it.
    record: RowRecord | None = None


_CARRIERS: dict[type, Any] = {tuple: _Tuple, list: _List, str: _Text}


def attach_record(saved: Any, record: RowRecord) -> Any:
    """The same state, or text about it, with the record of the rows."""
    if type(saved) not in _CARRIERS:
        return saved
    carrier = _CARRIERS[type(saved)](saved)
    carrier.record = record
    return carrier


def detach_record(saved: Any) -> tuple[Any, RowRecord | None]:
    """The state as the release returned it, and the record that it carries."""
    for plain, carrier in _CARRIERS.items():
        if type(saved) is carrier:
            return plain(saved), getattr(saved, "record", None)
    return saved, None


def carry_in_state(original: Any) -> property:
    """``state`` or ``meta_state`` that carries the record of the rows."""
    assert original.fget is not None and original.fset is not None
    get, put = original.fget, original.fset

    def save(cache: Any) -> Any:
        saved, record = get(cache), read_record(cache)
        return saved if record is None else attach_record(saved, record)

    def restore(cache: Any, saved: Any) -> None:
        plain, record = detach_record(saved)
        put(cache, plain)
        if record is not None:
            write_record(cache, record)

    return property(save, restore, original.fdel, original.__doc__)


# -- files -----------------------------------------------------------------------------


def save_prompt_cache(
    original: Callable[..., None],
    file_name: str,
    cache: Sequence[Any],
    metadata: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """``save_prompt_cache`` that adds the record to the file's metadata.

    What a row was being fed is not saved: its later tokens count on from its delta.
    """
    records = {
        str(layer): {name: held.reshape(-1).tolist() for name, held in record.columns().items()}
        for layer, one in enumerate(cache)
        if (record := read_record(one)) is not None
    }
    if records:
        metadata = {**(metadata or {}), RECORD: json.dumps(records)}
    extra = () if metadata is None else (metadata,)
    original(file_name, cache, *extra, *args, **kwargs)


def load_prompt_cache(
    original: Callable[..., Any], file_name: str, return_metadata: bool = False
) -> Any:
    """``load_prompt_cache`` that gives the caches the record which is in the metadata."""
    import mlx.core as mx

    cache, metadata = original(file_name, return_metadata=True)
    # Without any metadata, what is read back in its place is no dictionary in every release.
    records = metadata.pop(RECORD, "{}") if isinstance(metadata, dict) else "{}"
    for layer, columns in json.loads(records).items():
        arrays = {name: mx.array(held, mx.int32)[:, None] for name, held in columns.items()}
        write_record(cache[int(layer)], RowRecord(**arrays))
    return (cache, metadata) if return_metadata else cache


# -- targets ---------------------------------------------------------------------------

_OPERATIONS = {
    "merge": around(merge),
    "extend": around(extend),
    "filter": around(filter_rows),
    "extract": around(extract),
}
_FILES = {
    "save_prompt_cache": around(save_prompt_cache),
    "load_prompt_cache": around(load_prompt_cache),
}
# Of a class of batches: what saves it, and its rows alone.
_SAVED = {
    "BatchKVCache": ("BatchKVCache.state", "KVCache.state"),
    "BatchRotatingKVCache": (
        "BatchRotatingKVCache.state",
        "BatchRotatingKVCache.meta_state",
        "RotatingKVCache.state",
        "RotatingKVCache.meta_state",
    ),
    "ArraysCache": ("ArraysCache.state",),
}


def cache_targets(distribution: str, *kinds: str) -> tuple[Target, ...]:
    """What makes the record follow its rows in a distribution's caches.

    Args:
        distribution: whose ``models.cache`` module it is.
        kinds: the classes of batches; what saves their rows alone is part of it.
    """
    module = f"{distribution.replace('-', '_')}.models.cache"
    factories: dict[str, Any] = {
        f"{kind}.{name}": factory for kind in kinds for name, factory in _OPERATIONS.items()
    }
    saved = ("_BaseCache.meta_state", *(name for kind in kinds for name in _SAVED[kind]))
    factories |= dict.fromkeys(saved, carry_in_state)
    if distribution == "mlx-lm":
        factories |= _FILES
    return tuple(
        Target(distribution, module, name, factory, supports=True)
        for name, factory in factories.items()
    )
