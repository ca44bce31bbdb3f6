"""The lab: batch invariance of every model family of an installed release, cell by cell.

``families`` says which there are, ``build`` makes a tiny random-weight model of one, and a
scenario compares a batch of it with its rows run alone. A cell is one scenario of one family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..evidence.words import BFLOAT16, FLOAT32


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """One decoder family: the distribution, and the model's module below its ``models``."""

    distribution: str
    name: str

    def __str__(self) -> str:
        return f"{self.distribution}:{self.name}"


class NotBuilt(Exception):
    """A family that cannot be built here; the message is the reason, one line."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a row in a batch may be from the row alone.

    Args:
        logits: the largest difference, relative to the row's largest logit.
        margin: how far apart, relative to the same, the two likeliest tokens must be for
            another choice to count.
        nats: where given, the Kullback-Leibler divergence decides in place of ``logits``.
    """

    logits: float
    margin: float
    nats: float | None = None

    def quantized(self) -> Tolerance:
        """For quantized keys and values: equal ones may fall into neighbouring steps."""
        return Tolerance(max(self.logits, 2e-2), max(self.margin, 2e-2), self.nats)


# Of a tiny model, by the dtype of its weights; docs/lab.md says where the second comes from.
EXACT = Tolerance(1e-3, 1e-3)
TOLERANCES = {FLOAT32: EXACT, BFLOAT16: Tolerance(0.11, 0.11)}


@dataclass(frozen=True, slots=True)
class Said:
    """A token of a batch generator; its own log-probability, and all of them where offered."""

    token: int
    own: float | None = None
    every: Any = None


@dataclass(frozen=True, slots=True)
class LabModel:
    """A language model: a tiny one of random weights, or a user's own.

    Args:
        family: which.
        config: the small config that it was built from.
        vocabulary: how many token ids it knows; 0 is kept for padding.
        window: the smallest sliding window of its caches, None where it has none.
        call: ``call(tokens, cache, **kwargs)``: token ids of shape (rows, length) to float32
            logits of shape (rows, length, vocabulary).
        make_cache: the model's own caches for one row.
        make_batch_cache: the caches of a left-padded batch, chosen as the release's own engine
            chooses them; takes the padding of each row.
        module: the language model itself, for what a scenario needs beyond this.
        tolerance: how far a batch may be from its rows alone.
        dtype: of the weights.
    """

    family: Family
    config: dict[str, Any]
    vocabulary: int
    window: int | None
    call: Callable[..., Any]
    make_cache: Callable[[], list[Any]]
    make_batch_cache: Callable[[Sequence[int]], list[Any]]
    module: Any
    tolerance: Tolerance = EXACT
    dtype: str = FLOAT32


@dataclass(frozen=True, slots=True)
class Cell:
    """What one scenario saw: ``green``, ``red``, ``n/a``, ``insensitive`` or ``not-built``.

    ``figure`` is the largest difference relative to the logits' scale; ``detail`` says what it
    is, or the exception with the line in the package that raised it.
    """

    verdict: str
    detail: str = ""
    figure: float | None = None
