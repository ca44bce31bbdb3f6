"""Moves rows into and out of quantized batch caches, and checks each row's tokens.

Each row has its own tokens. Its dequantized keys and values in the batch are compared with those
of a cache that holds only that row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import cache_of

HEADS, WIDTH, BITS = 2, 32, 4
# Quantizing the same token in another batch may round some values to a neighbouring level.
TOLERANCE = 0.05


def probe(target: Target) -> Result:
    """Red where a row does not hold its own tokens. An operation that raises is red, too."""
    found = cache_of(target)
    module = importlib.import_module(target.module)
    # The target of ``merge`` is the solo class.
    kind = Kind(getattr(module, f"Batch{found.__name__.removeprefix('Batch')}", None))
    name = target.name.partition(".")[2]
    problems = list(filter(None, _CHECKS[name](kind)))
    if problems:
        return Result(True, problems[0])
    return Result(False, "every row holds its own tokens")


class Kind:
    """A quantized batch cache class and its solo class."""

    def __init__(self, batch: Any):
        if batch is None:
            raise NotApplicable("the release has no quantized batch cache")
        self.batch_class = batch
        self.module = importlib.import_module(batch.__module__)
        self.turbo = "Turbo" in batch.__name__

    def batch(self, padding: Sequence[int], tokens: int = 0) -> Any:
        """Make a left-padded batch with ``tokens`` columns, padding included."""
        if self.turbo:
            cache = self.batch_class(list(padding), bits=BITS)
        else:
            cache = self.batch_class(list(padding), group_size=WIDTH, bits=BITS)
        if tokens:
            feed(cache, [(row, -pad) for row, pad in enumerate(padding)], tokens)
        return cache

    def solo(self, row: int, tokens: int) -> Any:
        """Make a cache that holds one row."""
        if self.turbo:
            cache = self.module.TurboQuantKVCache(bits=BITS)
        else:
            cache = self.module.QuantizedKVCache(group_size=WIDTH, bits=BITS)
        if tokens:
            feed(cache, [(row, 0)], tokens)
        return cache

    def wrong(self, cache: Any, lengths: Sequence[int], rows: Sequence[int] | None = None) -> str:
        """Describe what is wrong with a batch, or return "" if nothing is.

        The rows are checked again after one decode step.

        Args:
            lengths: how many tokens each row should hold.
            rows: which row's tokens each should hold; 0, 1, ... by default.
        """
        rows = range(len(lengths)) if rows is None else rows
        problem = self._wrong_now(cache, lengths, rows)
        if problem:
            return problem
        feed(cache, list(zip(rows, lengths, strict=True)), 1)
        problem = self._wrong_now(cache, [length + 1 for length in lengths], rows)
        return f"after a step: {problem}" if problem else ""

    def wrong_alone(self, cache: Any, row: int, length: int) -> str:
        """The same check for a cache of one row."""
        for more in (0, 1):
            if more:
                feed(cache, [(row, length)], 1)
            if int(cache.offset) != length + more:
                return f"row {row} extracted holds {cache.offset} tokens, not {length + more}"
            if length + more and self._apart(cache, 0, 0, length + more, row) > TOLERANCE:
                return f"row {row} extracted holds other tokens"
        return ""

    def _wrong_now(self, cache: Any, lengths: Sequence[int], rows: Sequence[int]) -> str:
        if cache.offset.tolist() != list(lengths):
            return f"offset {cache.offset.tolist()}, not {list(lengths)}"
        held = [cache._idx - pad for pad in cache.left_padding.tolist()]
        if held != list(lengths):
            return f"rows hold {held} tokens, not {list(lengths)}"
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            start = cache._idx - length
            if length and self._apart(cache, index, start, cache._idx, row) > TOLERANCE:
                return f"row {index} holds other tokens"
        return ""

    def _apart(self, cache: Any, index: int, start: int, end: int, row: int) -> float:
        """The relative distance between a row's tokens and those of the row alone."""
        import mlx.core as mx

        there = self._plain(self.solo(row, end - start), 0, 0, end - start)
        here = self._plain(cache, index, start, end)
        if here.shape != there.shape:
            return float("inf")
        return float((mx.linalg.norm(here - there) / mx.linalg.norm(there)).item())

    def _plain(self, cache: Any, index: int, start: int, end: int) -> Any:
        import mlx.core as mx
        from mlx.utils import tree_map

        keys, values = tree_map(
            lambda part: part[index : index + 1, :, start:end], (cache.keys, cache.values)
        )
        if self.turbo:
            parts = cache.key_codec.dequantize(keys), cache.value_codec.dequantize(values)
        else:
            parts = tuple(
                mx.dequantize(*part, group_size=cache.group_size, bits=cache.bits)
                for part in (keys, values)
            )
        return mx.concatenate([part.astype(mx.float32) for part in parts])


def feed(cache: Any, places: Sequence[tuple[int, int]], count: int) -> None:
    """Feed each row ``count`` tokens; ``places`` are pairs of row and first token."""
    import mlx.core as mx

    parts = [_tokens(row, start, count) for row, start in places]
    cache.update_and_fetch(mx.concatenate(parts), -mx.concatenate(parts))


def _tokens(row: int, start: int, count: int) -> Any:
    """A row's keys from token ``start`` on; before token 0 they are padding noise of that row."""
    import mlx.core as mx

    drawn = mx.random.normal((1, HEADS, 600, WIDTH), key=mx.random.key(row))
    return drawn[:, :, 100 + start : 100 + start + count]


def _prepare(kind: Kind) -> Any:
    cache = kind.batch([0, 1])
    _method(cache, "prepare")(left_padding=[2, 0])
    if (cache.left_padding.tolist(), cache.offset.tolist()) != ([2, 1], [-2, -1]):
        yield f"left padding {cache.left_padding.tolist()}, offset {cache.offset.tolist()}"
    full = kind.batch([0, 0], 3)
    full.prepare(lengths=[3, 2], right_padding=[0, 1])
    yield kind.wrong(full, [3, 3])


def _finalize(kind: Kind) -> Any:
    for prepare_first in (True, False):
        cache = kind.batch([0, 0])
        _method(cache, "finalize")
        if prepare_first:
            cache.prepare(lengths=[8, 5], right_padding=[2, 5])
        feed(cache, [(0, 0), (1, 0)], 10)
        if not prepare_first:
            cache.prepare(right_padding=[2, 5])
        cache.finalize()
        extracts = hasattr(cache, "extract")
        alone = [cache.extract(row) for row in range(2)] if extracts else []
        yield kind.wrong(cache, [8, 5])
        for row, (one, length) in enumerate(zip(alone, (8, 5), strict=False)):
            yield kind.wrong_alone(one, row, length)
    history = kind.batch([3, 0], 7)
    history.prepare(lengths=[2, 6], right_padding=[4, 0])
    feed(history, [(0, 4), (1, 7)], 6)
    history.finalize()
    yield kind.wrong(history, [6, 13])
    empty = kind.batch([0, 0])
    empty.finalize()


def _extract(kind: Kind) -> Any:
    cache = kind.batch([3, 0, 1], 6)
    for row, pad in enumerate((3, 0, 1)):
        yield kind.wrong_alone(_method(cache, "extract")(row), row, 6 - pad)
    yield kind.wrong(cache, [3, 6, 5])
    yield kind.wrong_alone(kind.batch([0, 0]).extract(1), 1, 0)


def _merge(kind: Kind) -> Any:
    merge = _method(type(kind.solo(0, 0)), "merge")
    for lengths in ([4, 7, 1], [4, 0, 7], [0, 300], [0, 0]):
        cache = merge([kind.solo(row, length) for row, length in enumerate(lengths)])
        if not isinstance(cache, kind.batch_class):
            yield f"merge returns a {type(cache).__name__}"
        yield kind.wrong(cache, lengths)


def _size(kind: Kind) -> Any:
    cache = kind.batch([1, 0])
    for tokens in (0, 5, 1):
        if tokens:
            feed(cache, [(0, 0), (1, 0)], tokens)
        if cache.size() != cache._idx:
            yield f"size {cache.size()} with {cache._idx} tokens"


def _nbytes(kind: Kind) -> Any:
    from mlx.utils import tree_flatten

    cache = kind.batch([1, 0])
    if cache.nbytes != 0:
        yield f"an empty cache reports {cache.nbytes} bytes"
    feed(cache, [(0, 0), (1, 0)], 300)
    held = sum(part.nbytes for _, part in tree_flatten((cache.keys, cache.values)))
    if cache.nbytes != held:
        yield f"{cache.nbytes} bytes, not {held}"


def _extend(kind: Kind) -> Any:
    for first, second in ((5, 0), (0, 5), (3, 300), (300, 3), (7, 7), (0, 0)):
        cache = kind.batch([0, min(1, first)], first)
        cache.extend(_one(kind, second))
        yield kind.wrong(cache, [first, max(0, first - 1), second])


def _one(kind: Kind, tokens: int) -> Any:
    cache = kind.batch([0])
    if tokens:
        feed(cache, [(2, 0)], tokens)
    return cache


def _restored_padding(kind: Kind) -> Any:
    import mlx.core as mx

    cache = restored(kind.batch([2, 0], 5))
    cache.finalize()
    cache.filter(mx.array([0, 1]))
    yield kind.wrong(cache, [3, 5])


def _restored(kind: Kind) -> Any:
    cache = restored(kind.batch([2, 0], 5))
    yield kind.wrong(cache, [3, 5])
    empty = restored(kind.batch([0, 0]))
    feed(empty, [(0, 0), (1, 0)], 3)
    yield kind.wrong(empty, [3, 3])


def _from_file(kind: Kind) -> Any:
    cache = kind.batch([2, 0], 5)
    keys, values, *rest = cache.state
    listed = [_as_lists(keys), _as_lists(values), *rest]
    yield kind.wrong(type(cache).from_state(listed, list(cache.meta_state)), [3, 5])


def _as_lists(tree: Any) -> Any:
    return list(map(_as_lists, tree)) if isinstance(tree, tuple) else tree


def restored(cache: Any) -> Any:
    """Restore a new cache from another's state, as loading it from a file does."""
    return type(cache).from_state(cache.state, cache.meta_state)


def _method(owner: Any, name: str) -> Callable[..., Any]:
    method = getattr(owner, name, None)
    if method is None:
        kind = owner if isinstance(owner, type) else type(owner)
        raise AttributeError(f"{kind.__name__} has no {name}")
    found: Callable[..., Any] = method
    return found


_CHECKS: dict[str, Callable[[Kind], Any]] = {
    "prepare": _prepare,
    "finalize": _finalize,
    "extract": _extract,
    "merge": _merge,
    "size": _size,
    "nbytes": _nbytes,
    "extend": _extend,
    "_right_padding": _restored_padding,
    "state": _from_file,
    "meta_state": _restored,
}
