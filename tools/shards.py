"""The option ``--shard I/N`` of the measuring tools: every Nth of a list, from the Ith."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Shard(NamedTuple):
    """Every ``count``-th of a list, from the ``index``-th; the first is 1."""

    index: int = 1
    count: int = 1

    def of(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.index - 1 :: self.count]


def add_option(parser: ArgumentParser, things: str) -> None:
    """Give a tool the option; without it, a shard is the whole list."""
    words = f"every Nth {things}, from the Ith"
    parser.add_argument("--shard", type=parse, default=Shard(), metavar="I/N", help=words)


def parse(text: str) -> Shard:
    """Read ``I/N``."""
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
        return Shard(int(index), int(count))
    raise SystemExit(f"--shard {text!r}: not I/N with I from 1 to N, such as --shard 1/8")
