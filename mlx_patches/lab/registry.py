"""Registers scenarios; ``scenarios`` has the default ones, ``named_scenarios`` others."""

import functools
from collections.abc import Callable, Sequence

from . import Cell, LabModel, engine
from .rows import Row, compare

Scenario = Callable[[LabModel], Cell]
REGISTERED: dict[str, Scenario] = {}
NAMED: dict[str, Scenario] = {}
Run = Callable[[LabModel], Sequence[Row] | Cell]


def scenario(name: str, into: dict[str, Scenario] = REGISTERED) -> Callable[[Run], Scenario]:
    """Register a function that runs rows in a batch; the cell compares them with solo runs."""

    def register(run: Run) -> Scenario:
        @functools.wraps(run)
        def measure(model: LabModel) -> Cell:
            engine.forget(model)
            try:
                seen = run(model)
                return seen if isinstance(seen, Cell) else compare(model, seen)
            except Exception as error:
                return engine.judge_error(error)
            finally:
                engine.unmark()

        if name in REGISTERED or name in NAMED:  # would hide the other
            raise ValueError(f"two scenarios are called {name}")
        into[name] = measure
        return measure

    return register
