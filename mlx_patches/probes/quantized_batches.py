"""Quantized batches: their classes, rows with known tokens, and what is wrong with one."""

import importlib
from collections.abc import Sequence
from typing import Any

from ..core.arrays import mx
from . import NotApplicable

HEADS, WIDTH, BITS = 2, 32, 4
# Quantizing the same token in another batch may round some values to a neighbouring level.
TOLERANCE = 0.05


class Kind:
    """A quantized batch cache class and its solo class."""

    def __init__(self, batch: Any):
        if batch is None:
            raise NotApplicable("the release has no quantized batch cache")
        self.batch_class = batch
        self.module = importlib.import_module(batch.__module__)
        self.turbo = "Turbo" in batch.__name__
        self.settings = {"bits": BITS} if self.turbo else {"bits": BITS, "group_size": WIDTH}

    def batch(self, padding: Sequence[int], tokens: int = 0) -> Any:
        """Make a left-padded batch with ``tokens`` columns, padding included."""
        cache = self.batch_class(list(padding), **self.settings)
        if tokens:
            feed(cache, [(row, -pad) for row, pad in enumerate(padding)], tokens)
        return cache

    def solo(self, row: int, tokens: int) -> Any:
        """Make a cache that holds one row."""
        name = "TurboQuantKVCache" if self.turbo else "QuantizedKVCache"
        cache = getattr(self.module, name)(**self.settings)
        if tokens:
            feed(cache, [(row, 0)], tokens)
        return cache

    def wrong(self, cache: Any, lengths: Sequence[int], rows: Sequence[int] | None = None) -> str:
        """Describe what is wrong with a batch, or return "" if nothing is.

        The rows are checked again after one decode step.
        """
        rows = range(len(lengths)) if rows is None else rows
        problem = self._wrong_now(cache, lengths, rows)
        if problem:
            return problem
        feed(cache, list(zip(rows, lengths, strict=True)), 1)
        problem = self._wrong_now(cache, [length + 1 for length in lengths], rows)
        return f"after a step: {problem}" if problem else ""

    def wrong_solo(self, cache: Any, row: int, length: int) -> str:
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
        """The relative distance between a row's tokens in a batch and in a solo run."""
        there = self._plain(self.solo(row, end - start), 0, 0, end - start)
        here = self._plain(cache, index, start, end)
        if here.shape != there.shape:
            return float("inf")
        return float((mx.linalg.norm(here - there) / mx.linalg.norm(there)).item())

    def _plain(self, cache: Any, index: int, start: int, end: int) -> Any:
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
    parts = [_tokens(row, start, count) for row, start in places]
    cache.update_and_fetch(mx.concatenate(parts), -mx.concatenate(parts))


def _tokens(row: int, start: int, count: int) -> Any:
    """A row's keys from token ``start`` on; before token 0 they are padding noise of that row."""
    drawn = mx.random.normal((1, HEADS, 600, WIDTH), key=mx.random.key(row))
    return drawn[:, :, 100 + start : 100 + start + count]
