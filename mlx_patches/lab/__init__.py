"""The lab: batch invariance of every model family of an installed release, cell by cell.

``families`` lists the families, ``build`` makes a tiny random-weight model of one, and a scenario
compares a batch with solo runs of its rows. A cell is the result of one scenario for one family.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from ..core.packages import package_of
from ..evidence.words import BFLOAT16, FLOAT32

# Replaces a family's name in the results of scenarios of the whole release.
RELEASE = "release"


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """One decoder family: the distribution, and the model's module below its ``models``."""

    distribution: str
    name: str

    def __str__(self) -> str:
        return f"{self.distribution}:{self.name}"

    @property
    def package(self) -> str:
        return package_of(self.distribution)

    def part(self, path: str) -> ModuleType:
        return importlib.import_module(f"{self.package}.{path}")

    def module(self) -> ModuleType:
        return self.part(f"models.{self.name}")


class NotBuilt(Exception):
    """Raised for a family that cannot be built here; the message is the reason in one line."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a row in a batch may be from its solo run.

    Args:
        logits: the largest difference, relative to the row's largest logit.
        margin: the smallest difference of the two largest logits, relative to the row's largest
            logit, at which a different likeliest token counts.
        nats: the largest Kullback-Leibler divergence, in nats; if set, it replaces ``logits``.
        rounding: the largest relative error with which the engine rounds log-probabilities; 0 if
            it is far below the others.
    """

    logits: float
    margin: float
    nats: float | None = None
    rounding: float = 0.0

    def for_quantized(self) -> "Tolerance":
        """The tolerance for quantized keys and values: rounding noise may change their step."""
        return replace(self, logits=max(self.logits, 2e-2), margin=max(self.margin, 2e-2))


# Tolerances of tiny models by the dtype of their weights; docs/lab.md explains the one of bfloat16.
EXACT = Tolerance(1e-3, 1e-3)
TOLERANCES = {FLOAT32: EXACT, BFLOAT16: Tolerance(0.11, 0.11, rounding=2**-7)}


@dataclass(frozen=True, slots=True)
class Generated:
    """A token that a batch generator generated.

    ``own`` is the token's log-probability and ``every`` those of all tokens, of shape
    (vocabulary,); each is None if the generator does not return it.
    """

    token: int
    own: float | None = None
    every: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class LabModel:
    """A language model: a tiny one of random weights, or a user's own.

    Args:
        config: the small config that it was built from.
        vocabulary: the number of token ids; id 0 is reserved for padding.
        window: the smallest sliding window of its caches, None if it has none.
        call: ``call(tokens, cache, **kwargs)``: token ids of shape (rows, length) to float32
            logits of shape (rows, length, vocabulary).
        make_cache: the model's own caches for one row.
        make_batch_cache: the caches of a left-padded batch, chosen as the release's own engine
            chooses them; takes the padding of each row.
        module: the language model itself, for scenarios that need more than the above.
        tolerance: how far a batch may be from solo runs.
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
    """The result of one scenario: one of ``evidence.words.RESULTS``.

    ``figure`` is the measured number, mostly the largest difference relative to the logits'
    scale. ``detail`` explains it, or names the exception and the line that raised it.
    """

    verdict: str
    detail: str = ""
    figure: float | None = None
