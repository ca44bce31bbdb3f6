"""Saves, splits and joins empty caches."""

from typing import Any

from ....probes.kit import Result, Target, module_of, mx, own_class_of, require

_WINDOW = 8
_TOKENS = 3


def probe(target: Target) -> Result:
    """Red if an operation on an empty cache raises, or its result is not empty."""
    own_class_of(target)
    require(target)
    kind, _, operation = target.name.partition(".")
    caches = module_of(target)
    try:
        problem = _OPERATIONS[operation](caches, kind)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return Result(bool(problem), problem or f"{operation} of an empty cache is empty")


def _make_cache(caches: Any, kind: str, rows: int = 2) -> Any:
    if kind == "ArraysCache":
        return caches.ArraysCache(2)
    arguments = [_WINDOW] if "Rotating" in kind else []
    return getattr(caches, kind)(*arguments, *([[0] * rows] if kind.startswith("Batch") else []))


def save_empty(caches: Any, kind: str) -> str:
    cache = _make_cache(caches, kind)
    state = cache.state
    if state[0] is not None:
        return f"keys {state[0]}"
    copy = _make_cache(caches, kind)
    copy.state = state
    if copy.keys is not None:
        return "the restored cache is not empty"
    return "" if accepts_tokens(copy) else "the restored cache rejects keys"


def accepts_tokens(cache: Any) -> bool:
    return all(row == [1] * _TOKENS for row in feed_ones(cache))


def feed_ones(cache: Any, tokens: int = _TOKENS) -> list[list[float]]:
    rows = cache.offset.size if hasattr(cache.offset, "size") else 1
    keys, _ = cache.update_and_fetch(*[mx.ones((rows, 1, tokens, 2))] * 2)
    held: list[list[float]] = keys[:, 0, :, 0].tolist()
    return held


def extract_empty(caches: Any, kind: str) -> str:
    """Extract a row of an empty batch, or of a recurrent cache with one unused slot."""
    cache = _make_cache(caches, kind)
    if kind == "ArraysCache":
        cache[1] = mx.ones((2, 3))
        row = cache.extract(1)
        return "" if row[0] is None and row[1].shape == (1, 3) else f"slots {row.cache}"
    row = cache.extract(1)
    wanted = kind.removeprefix("Batch")
    if type(row).__name__ != wanted:
        return f"a {type(row).__name__}, not a {wanted}"
    return "" if row.keys is None and accepts_tokens(row) else "the row is not empty"


def merge_empty(caches: Any, kind: str) -> str:
    rows = [_make_cache(caches, kind.removeprefix("Batch")) for _ in range(2)]
    batch = getattr(caches, kind).merge(rows)
    if batch.keys is not None or batch.offset.tolist() != [0, 0]:
        return f"offset {batch.offset.tolist()}"
    if not accepts_tokens(batch):
        return "the batch rejects keys"
    feed_ones(rows[1])
    batch = getattr(caches, kind).merge(rows)
    if batch.offset.tolist() != [0, 3] or batch.left_padding.tolist() != [3, 0]:
        return f"offset {batch.offset.tolist()}, padding {batch.left_padding.tolist()}"
    held = feed_ones(batch, 1)
    return "" if held == [[0, 0, 0, 1], [1, 1, 1, 1]] else f"the batch holds {held}"


def filter_empty(caches: Any, kind: str) -> str:
    cache = _make_cache(caches, kind, rows=3)
    cache.filter(mx.array([1]))
    return "" if cache.offset.size == cache.left_padding.size == 1 else "removed rows are left"


def extend_empty(caches: Any, kind: str) -> str:
    """Extend two empty rows by one; then join a written row and two empty ones in both orders."""
    cache = _make_cache(caches, kind)
    cache.extend(_make_cache(caches, kind, rows=1))
    if not cache.offset.size == cache.left_padding.size == 3:
        return "rows are missing"
    for order in (1, -1):
        written, empty = _make_cache(caches, kind, rows=1), _make_cache(caches, kind)
        feed_ones(written)
        cache, other = (written, empty)[::order]
        cache.extend(other)
        held = feed_ones(cache, 1)[::order]
        if held != [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]]:
            return f"the batch holds {held}"
        padding = cache.left_padding.tolist()[::order]
        if padding != [0, 3, 3]:
            return f"left padding {padding}"
    return ""


def finalize_empty(caches: Any, kind: str) -> str:
    cache = _make_cache(caches, kind)
    cache.prepare(lengths=[1, 2], right_padding=[1, 0])
    cache.finalize()
    if cache.keys is not None or cache.offset.tolist() != [0, 0]:
        return f"offset {cache.offset.tolist()}"
    return "" if accepts_tokens(cache) else "the batch rejects keys"


_OPERATIONS = {
    "state": save_empty,
    "extract": extract_empty,
    "merge": merge_empty,
    "filter": filter_empty,
    "extend": extend_empty,
    "finalize": finalize_empty,
}
