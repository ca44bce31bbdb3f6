"""Moves rows into and out of quantized batch caches, and checks each row's tokens.

Each row has its own tokens. Its dequantized keys and values in the batch are compared with those
of a cache that holds only that row.
"""

from collections.abc import Callable
from typing import Any

from ....probes.kit import Result, Target, module_of, mx, own_class_of, restore_cache
from ....probes.quantized_batches import Kind, feed


def probe(target: Target) -> Result:
    """Red if a row does not hold its own tokens. An operation that raises is red, too."""
    found = own_class_of(target)
    module = module_of(target)
    # The target of ``merge`` is the solo class.
    kind = Kind(getattr(module, f"Batch{found.__name__.removeprefix('Batch')}", None))
    name = target.name.partition(".")[2]
    problems = list(filter(None, _CHECKS[name](kind)))
    return Result(bool(problems), problems[0] if problems else "every row holds its own tokens")


def _check_prepare(kind: Kind) -> Any:
    cache = kind.batch([0, 1])
    _find_method(cache, "prepare")(left_padding=[2, 0])
    if (cache.left_padding.tolist(), cache.offset.tolist()) != ([2, 1], [-2, -1]):
        yield f"left padding {cache.left_padding.tolist()}, offset {cache.offset.tolist()}"
    full = kind.batch([0, 0], 3)
    full.prepare(lengths=[3, 2], right_padding=[0, 1])
    yield kind.wrong(full, [3, 3])


def _check_finalize(kind: Kind) -> Any:
    for prepare_first in (True, False):
        cache = kind.batch([0, 0])
        _find_method(cache, "finalize")
        if prepare_first:
            cache.prepare(lengths=[8, 5], right_padding=[2, 5])
        feed(cache, [(0, 0), (1, 0)], 10)
        if not prepare_first:
            cache.prepare(right_padding=[2, 5])
        cache.finalize()
        extracts = hasattr(cache, "extract")
        rows = [cache.extract(row) for row in range(2)] if extracts else []
        yield kind.wrong(cache, [8, 5])
        for row, (one, length) in enumerate(zip(rows, (8, 5), strict=False)):
            yield kind.wrong_solo(one, row, length)
    history = kind.batch([3, 0], 7)
    history.prepare(lengths=[2, 6], right_padding=[4, 0])
    feed(history, [(0, 4), (1, 7)], 6)
    history.finalize()
    yield kind.wrong(history, [6, 13])
    empty = kind.batch([0, 0])
    empty.finalize()


def _check_extract(kind: Kind) -> Any:
    cache = kind.batch([3, 0, 1], 6)
    for row, pad in enumerate((3, 0, 1)):
        yield kind.wrong_solo(_find_method(cache, "extract")(row), row, 6 - pad)
    yield kind.wrong(cache, [3, 6, 5])
    yield kind.wrong_solo(kind.batch([0, 0]).extract(1), 1, 0)


def _check_merge(kind: Kind) -> Any:
    merge = _find_method(type(kind.solo(0, 0)), "merge")
    for lengths in ([4, 7, 1], [4, 0, 7], [0, 300], [0, 0]):
        cache = merge([kind.solo(row, length) for row, length in enumerate(lengths)])
        if not isinstance(cache, kind.batch_class):
            yield f"merge returns a {type(cache).__name__}"
        yield kind.wrong(cache, lengths)


def _check_size(kind: Kind) -> Any:
    cache = kind.batch([1, 0])
    for tokens in (0, 5, 1):
        if tokens:
            feed(cache, [(0, 0), (1, 0)], tokens)
        if cache.size() != cache._idx:
            yield f"size {cache.size()} with {cache._idx} tokens"


def _check_nbytes(kind: Kind) -> Any:
    from mlx.utils import tree_flatten

    cache = kind.batch([1, 0])
    if cache.nbytes != 0:
        yield f"an empty cache reports {cache.nbytes} bytes"
    feed(cache, [(0, 0), (1, 0)], 300)
    held = sum(part.nbytes for _, part in tree_flatten((cache.keys, cache.values)))
    if cache.nbytes != held:
        yield f"{cache.nbytes} bytes, not {held}"


def _check_extend(kind: Kind) -> Any:
    for first, second in ((5, 0), (0, 5), (3, 300), (300, 3), (7, 7), (0, 0)):
        cache = kind.batch([0, min(1, first)], first)
        other = kind.batch([0])
        if second:
            feed(other, [(2, 0)], second)
        cache.extend(other)
        yield kind.wrong(cache, [first, max(0, first - 1), second])


def _check_restored_padding(kind: Kind) -> Any:
    cache = restore_cache(kind.batch([2, 0], 5))
    cache.finalize()
    cache.filter(mx.array([0, 1]))
    yield kind.wrong(cache, [3, 5])


def _check_restored(kind: Kind) -> Any:
    cache = restore_cache(kind.batch([2, 0], 5))
    yield kind.wrong(cache, [3, 5])
    empty = restore_cache(kind.batch([0, 0]))
    feed(empty, [(0, 0), (1, 0)], 3)
    yield kind.wrong(empty, [3, 3])


def _check_loaded(kind: Kind) -> Any:
    cache = kind.batch([2, 0], 5)
    keys, values, *rest = cache.state
    listed = [_as_lists(keys), _as_lists(values), *rest]
    yield kind.wrong(type(cache).from_state(listed, list(cache.meta_state)), [3, 5])


def _as_lists(tree: Any) -> Any:
    return list(map(_as_lists, tree)) if isinstance(tree, tuple) else tree


def _find_method(owner: Any, name: str) -> Callable[..., Any]:
    method = getattr(owner, name, None)
    if method is None:
        kind = owner if isinstance(owner, type) else type(owner)
        raise AttributeError(f"{kind.__name__} has no {name}")
    found: Callable[..., Any] = method
    return found


_CHECKS: dict[str, Callable[[Kind], Any]] = {
    "prepare": _check_prepare,
    "finalize": _check_finalize,
    "extract": _check_extract,
    "merge": _check_merge,
    "size": _check_size,
    "nbytes": _check_nbytes,
    "extend": _check_extend,
    "_right_padding": _check_restored_padding,
    "state": _check_loaded,
    "meta_state": _check_restored,
}
