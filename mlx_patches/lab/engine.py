"""What the releases do differently with a batch's caches, behind one set of names.

A cache here is the list that a model takes: an entry for each layer. Each function does what the
installed release's own engine does, and raises NotApplicable where that release, or that kind of
cache, cannot.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Any

from ..probes import NotApplicable
from . import LabModel

PACKAGES = ("mlx_lm", "mlx_vlm")
# What M-RoPE families keep on the model from one call to the next.
REMEMBERED = ("_rope_deltas", "rope_deltas", "_position_ids")


def batch_cache(model: LabModel, padding: Sequence[int]) -> list[Any]:
    """The caches of a left-padded batch."""
    return _unless_refused(model.make_batch_cache, list(padding))


def merge(model: LabModel, rows: Sequence[list[Any]]) -> list[Any]:
    """One batch cache from the rows' own caches."""
    merge_caches = getattr(_generate_module(model), "_merge_caches", None)
    if merge_caches is not None:
        return _unless_refused(merge_caches, list(rows))
    return [_having(layers[0], "merge").merge(list(layers)) for layers in zip(*rows, strict=True)]


def empty_batch(model: LabModel, count: int) -> list[Any]:
    """The caches of a batch whose rows hold nothing yet and are going to be right-padded."""
    if merges_new_rows(model):
        return merge(model, [model.make_cache() for _ in range(count)])
    return batch_cache(model, [0] * count)


def merges_new_rows(model: LabModel) -> bool:
    """Whether the release's engine starts a batch by merging its rows' empty caches."""
    generate = _generate_module(model)
    return hasattr(generate, "PromptProcessingBatch") and hasattr(generate, "_merge_caches")


def prepare(cache: list[Any], lengths: Sequence[int]) -> None:
    """Announce right-padded rows of these lengths."""
    padding = [max(lengths) - length for length in lengths]
    for layer in cache:
        _having(layer, "prepare").prepare(lengths=list(lengths), right_padding=padding)


def finalize(cache: list[Any]) -> None:
    """Turn the right padding that was fed into left padding."""
    for layer in cache:
        _having(layer, "finalize").finalize()


def extend(cache: list[Any], other: list[Any]) -> list[Any]:
    """The rows of ``other`` after those of ``cache``; both are used up."""
    for layer, more in zip(cache, other, strict=True):
        _having(layer, "extend").extend(more)
    return cache


def keep(cache: list[Any], rows: Sequence[int]) -> None:
    """Drop every row but these."""
    import mlx.core as mx

    for layer in cache:
        _having(layer, "filter").filter(mx.array(list(rows), mx.int32))


def extract(cache: list[Any], row: int) -> list[Any]:
    """The cache of one row, that goes on alone."""
    return [_having(layer, "extract").extract(row) for layer in cache]


def trim(cache: list[Any], count: int) -> None:
    """Take back the last tokens of every row."""
    for layer in cache:
        if not _having(layer, "is_trimmable").is_trimmable():
            raise NotApplicable(f"{_kind(layer)} is not trimmable")
    for layer in cache:
        layer.trim(count)


def restored(cache: list[Any], fresh: list[Any]) -> list[Any]:
    """New caches from the state of ``cache``, as read back from a file.

    Args:
        cache: which keeps its own arrays.
        fresh: empty caches, for kinds that cannot be made from a state alone.
    """
    return [_restored(layer, empty) for layer, empty in zip(cache, fresh, strict=True)]


def forget(model: LabModel) -> None:
    """Drop what earlier calls left on the model."""
    for name in REMEMBERED:
        if getattr(model.module, name, None) is not None:
            setattr(model.module, name, None)


def where(error: BaseException) -> str:
    """The exception with the last line of the installed package that was on its way."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if _package_file(frame.filename)]
    frame = (inside or frames)[-1]
    file = _package_file(frame.filename) or "/".join(PurePath(frame.filename).parts[-2:])
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} ({file}:{frame.lineno})"


def _package_file(path: str) -> str | None:
    parts = PurePath(path).parts
    start = max((i for i, part in enumerate(parts) if part in PACKAGES), default=None)
    return None if start is None else "/".join(parts[start:])


def _generate_module(model: LabModel) -> ModuleType:
    package = model.family.distribution.replace("-", "_")
    return importlib.import_module(f"{package}.generate")


def _unless_refused(make: Any, *arguments: Any) -> list[Any]:
    try:
        return list(make(*arguments))
    except ValueError as error:
        # The engines refuse a kind of cache with these words.
        if "does not yet support" in str(error) or "is not supported" in str(error):
            raise NotApplicable(str(error)) from error
        raise


def _having(layer: Any, method: str) -> Any:
    parts = getattr(layer, "caches", None)
    for part in parts if isinstance(parts, (list, tuple)) else ():
        _having(part, method)
    if not hasattr(layer, method):
        raise NotApplicable(f"{_kind(layer)} has no {method}")
    return layer


def _kind(layer: Any) -> str:
    return type(layer).__name__


def _restored(layer: Any, empty: Any) -> Any:
    from mlx.utils import tree_map

    state = tree_map(_copy, _having(layer, "state").state)
    if not hasattr(layer, "from_state"):
        empty.state = state
        if hasattr(layer, "meta_state"):
            empty.meta_state = layer.meta_state
        return empty
    if hasattr(layer, "meta_state"):
        return type(layer).from_state(state, layer.meta_state)
    return type(layer).from_state(state)


def _copy(value: Any) -> Any:
    import mlx.core as mx

    if not isinstance(value, mx.array):
        return value
    copied = mx.array(value)
    mx.eval(copied)
    return copied
