"""Merges rows, some of them quantized, and compares each row before and after."""

from collections.abc import Callable, Sequence
from typing import Any

from ....probes.kit import (
    NotApplicable,
    Result,
    Target,
    import_module,
    module_of,
    mx,
    own_class_of,
    require_names,
)
from ....probes.quantized_batches import BITS, WIDTH, feed

_LENGTHS = (5, 3, 1)


def probe(target: Target) -> Result:
    """Red if the rows do not merge, or one holds other tokens than before."""
    if target.name.endswith("__len__"):
        require_names(own_class_of(target), "__len__")
        row = _make_row(module_of(target), "QuantizedKVCache", 0, 5)
        return Result(len(row) != 5, f"len() counts {len(row)} of 5 tokens")
    merge, caches = _find_merge(target)
    if target.name == "_merge_caches" and hasattr(caches.KVCache, "merge"):
        return Result(False, "every cache of this release merges itself")
    kinds = ["QuantizedKVCache", "KVCache"]
    if target.name.startswith("KVCache"):
        kinds.reverse()
    for others in kinds:
        rows = [
            _make_row(caches, kinds[0] if index == 0 else others, index, length)
            for index, length in enumerate(_LENGTHS)
        ]
        before = [_read_row(row, 0, 0, length) for row, length in zip(rows, _LENGTHS, strict=True)]
        batch = merge(rows)
        if batch.offset.tolist() != list(_LENGTHS):
            return Result(True, f"offset {batch.offset.tolist()}, not {list(_LENGTHS)}")
        for index, length in enumerate(_LENGTHS):
            here = _read_row(batch, index, batch._idx - length, batch._idx)
            distance = mx.linalg.norm(here - before[index]) / mx.linalg.norm(before[index])
            # Float rows that join a quantized batch lose precision: they get 4 bits.
            if not distance.item() <= (0.15 if hasattr(batch, "bits") else 1e-6):
                return Result(True, f"row {index} holds other tokens")
        feed(batch, list(enumerate(_LENGTHS)), 1)
    return Result(False, "every row holds its own tokens")


def _find_merge(target: Target) -> tuple[Callable[[Sequence[Any]], Any], Any]:
    if target.name == "_merge_caches":
        generate = module_of(target)
        require_names(generate, "_merge_caches")
        caches = import_module("mlx_lm.models.cache")
        return lambda rows: generate._merge_caches([[row] for row in rows])[0], caches
    kind = own_class_of(target)
    caches = module_of(target)
    require_names(getattr(caches, "BatchKVCache", None), "merge")
    if target.name == "KVCache.merge" and not hasattr(kind, "merge"):
        raise NotApplicable("KVCache has no merge in this release")
    return lambda rows: kind.merge(rows), caches


def _make_row(caches: Any, kind: str, index: int, length: int) -> Any:
    quantized = kind == "QuantizedKVCache"
    row = caches.QuantizedKVCache(group_size=WIDTH, bits=BITS) if quantized else caches.KVCache()
    feed(row, [(index, 0)], length)
    return row


def _read_row(cache: Any, index: int, start: int, end: int) -> Any:
    part = (slice(index, index + 1), slice(None), slice(start, end))
    if not isinstance(cache.keys, tuple):
        return mx.concatenate([cache.keys[part], cache.values[part]])
    plain = [
        mx.dequantize(*(one[part] for one in parts), group_size=WIDTH, bits=BITS)
        for parts in (cache.keys, cache.values)
    ]
    return mx.concatenate(plain)
