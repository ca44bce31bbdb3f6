"""A record of per-row data that patches store in a cache; it follows the rows.

The record is an entry (``row_entries``) of the first cache; it is copied, saved and restored with
the cache. ``state`` and ``meta_state`` carry it as an attribute of the tuple, list or empty text
that the release returns. In a file it is an entry of the caller's metadata of
``save_prompt_cache``, the only part of the file that the release does not interpret.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.verbs import Target, around, mx
from .image_states import ImageStates, join_states
from .prompt_files import load_entry, save_entry
from .row_entries import RowEntry
from .targets import LM_CACHES, VLM_CACHES, around_setter, at

RECORD = "_mlx_patches_rows"


# Not compared by value: that would read its arrays from the device.
@dataclass(frozen=True, slots=True, eq=False)
class RowRecord:
    """Per-row data of a cache. Immutable: copies of a cache share it.

    Args:
        deltas: rope deltas, (rows, 1); None if no row has one.
        lengths: the length of each row's prompt, (rows, 1), 0 if it is unknown; None if no row's
            length is known.
        prompts: each row's image prompt during its prefill, or None; empty if no row has one.
        images: the image states that cross-attention reads; None if no row has an image.
        turn: the text in chunked prefill outside a batch, if a host passes its positions; None
            between texts.
    """

    deltas: Any = None
    lengths: Any = None
    prompts: tuple[Any, ...] = ()
    images: ImageStates | None = None
    turn: Any = None

    def filter_rows(self, indices: Any) -> "RowRecord":
        """The record of these rows, ``indices`` being a list or an array of numbers."""
        columns = {name: held[indices] for name, held in self.columns().items()}
        prompts: tuple[Any, ...] = ()
        images = None
        if self.prompts or self.images:
            kept = indices.tolist() if hasattr(indices, "tolist") else list(indices)
            prompts = tuple(self.prompts[row] for row in kept) if self.prompts else ()
            images = self.images and self.images.take_rows(kept)
        return RowRecord(**columns, prompts=prompts if any(prompts) else (), images=images)

    def columns(self) -> dict[str, Any]:
        """The arrays (rows, 1) that are not None, by name."""
        held = {"deltas": self.deltas, "lengths": self.lengths}
        return {name: column for name, column in held.items() if column is not None}

    @property
    def empty(self) -> bool:
        has_column = self.deltas is not None or self.lengths is not None
        return not (has_column or self.prompts or self.images or self.turn)


_NOTHING = RowRecord()


def read_record(cache: Any) -> RowRecord | None:
    record: RowRecord | None = cache.__dict__.get(RECORD)
    return record


def write_record(cache: Any, record: RowRecord | None) -> None:
    if record is None or record.empty:
        cache.__dict__.pop(RECORD, None)
    else:
        cache.__dict__[RECORD] = record


def update_record(cache: Any, **changes: Any) -> None:
    write_record(cache, replace(read_record(cache) or _NOTHING, **changes))


def read_column(cache: Any, name: str, rows: int) -> Any:
    """The deltas or the lengths (rows, 1) of a cache's rows; None if there are none.

    Also None if they are for another number of rows: filtering a quantized batch does not change
    its record.
    """
    return column_of(read_record(cache), name, rows)


def column_of(record: RowRecord | None, name: str, rows: int) -> Any:
    column = getattr(record, name) if record else None
    return None if column is None or column.shape[0] != rows else column


def fill_column(cache: Any, name: str, rows: int) -> Any:
    column = read_column(cache, name, rows)
    if column is None:
        column = mx.zeros((rows, 1), mx.int32)
    return column


def count_rows(cache: Any) -> int:
    if hasattr(cache, "cache"):
        state = next((state for state in cache.cache if state is not None), None)
        return 1 if state is None else int(state.shape[0])
    offset = getattr(cache, "offset", 0)
    return int(offset.size) if hasattr(offset, "size") else 1


def concatenate_records(caches: Sequence[Any]) -> RowRecord | None:
    """The record of all rows of these caches, in their order; None if no cache has one."""
    records = [read_record(cache) for cache in caches]
    if not any(records):
        return None
    names = {name for record in records if record for name in record.columns()}
    counts = list(map(count_rows, caches))
    columns = {
        name: mx.concatenate(
            [fill_column(cache, name, count) for cache, count in zip(caches, counts, strict=True)]
        )
        for name in names
    }
    prompts: tuple[Any, ...] = ()
    for record, count in zip(records, counts, strict=True):
        prompts += (record.prompts if record else ()) or (None,) * count
    images = join_states([record.images if record else None for record in records], counts)
    return RowRecord(**columns, prompts=prompts if any(prompts) else (), images=images)


class _Tuple(tuple[Any, ...]):
    record: RowRecord | None = None


class _List(list[Any]):
    record: RowRecord | None = None


class _Text(str):
    # An empty text with an attribute is still false, so the release's setter accepts it.
    record: RowRecord | None = None


_CARRIERS: dict[type, Any] = {tuple: _Tuple, list: _List, str: _Text}


def attach_record(saved: Any, record: RowRecord) -> Any:
    """A ``state`` or ``meta_state`` with the record of the rows as an attribute."""
    if type(saved) not in _CARRIERS:
        return saved
    carrier = _CARRIERS[type(saved)](saved)
    carrier.record = record
    return carrier


def detach_record(saved: Any) -> tuple[Any, RowRecord | None]:
    """The state as the release returned it, and the record that it carries, or None."""
    for plain, carrier in _CARRIERS.items():
        if type(saved) is carrier:
            return plain(saved), getattr(saved, "record", None)
    return saved, None


def save_record(get: Callable[[Any], Any], cache: Any) -> Any:
    """``state`` or ``meta_state`` with the record of the rows."""
    # Engines read each layer's state after each prompt chunk; only the first has a record.
    record = getattr(cache, RECORD, None)
    saved = get(cache)
    return saved if record is None else attach_record(saved, record)


def restore_record(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set ``state`` or ``meta_state``, and the record that it carries."""
    plain, record = detach_record(saved)
    put(cache, plain)
    if record is not None:
        write_record(cache, record)


def save_prompt_cache(
    original: Callable[..., None], file_name: str, cache: Sequence[Any], metadata: Any = None
) -> None:
    """Save the caches, with their records in the file's metadata.

    Image prompts in prefill are not saved: later positions follow from the delta.
    """
    records = {
        str(layer): {name: held.reshape(-1).tolist() for name, held in record.columns().items()}
        for layer, one in enumerate(cache)
        if (record := read_record(one)) is not None
    }
    save_entry(original, file_name, cache, metadata, RECORD, records)


def load_prompt_cache(
    original: Callable[..., Any], file_name: str, return_metadata: bool = False
) -> Any:
    return load_entry(original, file_name, return_metadata, RECORD, set_records)


def set_records(cache: Sequence[Any], records: dict[str, dict[str, list[int]]]) -> None:
    for layer, columns in records.items():
        arrays = {name: mx.array(held, mx.int32)[:, None] for name, held in columns.items()}
        write_record(cache[int(layer)], RowRecord(**arrays))


_ENTRY = RowEntry(RECORD, read_record, write_record, concatenate_records)
_FILES = {
    "save_prompt_cache": around(save_prompt_cache),
    "load_prompt_cache": around(load_prompt_cache),
}
# The properties that save each batch class and its solo class.
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
    """Targets that make the record follow its rows in a distribution's caches."""
    saved = ("_BaseCache.meta_state", *(name for kind in kinds for name in _SAVED[kind]))
    factories: dict[str, Any] = dict.fromkeys(saved, around_setter(restore_record, save_record))
    if distribution == "mlx-lm":
        factories |= _FILES
    module = LM_CACHES if distribution == "mlx-lm" else VLM_CACHES
    return (*_ENTRY.targets(module, *kinds), *at((module,), factories, supports=True))
