"""Nanoseconds that each wrapper adds to a call, and how many such calls fit in a second.

    python benchmarks/wrappers.py [--model gemma4 ...]

Runs the lab's scenarios on a tiny model of each family with every patch that the release needs.
It times each call twice: around the wrapper, and around the release's own code below it. The
difference, less the cost of the two clocks, is the wrapper's time; the median of a target's calls
is printed. An attribute that only a patch defines has no release code below it. Run it in an
environment with a release and mlx-patches.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

from mlx_patches.activation.session import MODEL_PACKAGES
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import Patch, Target, around
from mlx_patches.lab import Family, NotBuilt
from mlx_patches.lab.build import build
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue
from mlx_patches.probes.child import open_gate

FAMILIES = ("llama", "gemma3", "gemma3n", "gemma4", "qwen2_5_vl", "qwen3_5", "mamba")
CALLS = 20_000


class Clock:
    """Records the nanoseconds that each call of a target takes besides the original."""

    def __init__(self) -> None:
        self.added: list[int] = []
        self._below = 0

    def outside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call and time a wrapper."""
        below, start = self._below, time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            whole = time.perf_counter_ns() - start
            self.added.append(whole - (self._below - below))

    def inside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call and time an original."""
        start = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            self._below += time.perf_counter_ns() - start

    def median(self) -> float:
        """The median nanoseconds of a call, the clocks' own cost included."""
        return statistics.median(self.added)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="only this family")
    options = parser.parse_args()
    models = [
        Family(distribution, name)
        for package, distribution in MODEL_PACKAGES.items()
        if importlib.util.find_spec(package.partition(".")[0])
        for name in options.model or FAMILIES
    ]
    clocks: dict[tuple[str, str], Clock] = {}
    for family in models:
        measure(family, clocks)
    if not clocks:
        sys.exit(
            "no wrapper was called: install a release with one of these families, or give --model"
        )
    own = clocks_alone()
    print(f"{'ns a call':>10} {'calls/s':>12} {'calls':>8}  patch and target")
    print(row(guard_alone(), CALLS, "the guard around each of them"))
    for (patch, target), clock in sorted(clocks.items(), key=lambda item: -len(item[1].added)):
        if clock.added:
            print(row(max(clock.median() - own, 0), len(clock.added), f"{patch}  {target}"))


def row(nanoseconds: float, calls: int, name: str) -> str:
    """A line of the table."""
    speed = f"{1e9 / nanoseconds:,.0f}" if nanoseconds >= 1 else "-"
    return f"{nanoseconds:10,.0f} {speed:>12} {calls:8,}  {name}"


def measure(family: Family, clocks: dict[tuple[str, str], Clock]) -> None:
    """Run a family's scenarios, and time its wrappers."""
    try:
        model = build(family)
    except NotBuilt:
        return
    manager = Manager(Gate(CompatMatrix.builtin()))
    for patch in catalogue.builtin():
        manager.apply(add_clocks(patch, clocks))
    for scenario in SCENARIOS.values():
        scenario(model)
    manager.restore()


def add_clocks(patch: Patch, clocks: dict[tuple[str, str], Clock]) -> Patch:
    """The same patch, with a clock around each wrapper and around the original below it."""
    targets = (
        target._replace(
            factory=functools.partial(
                under, clocks.setdefault((patch.id, target.path), Clock()), target
            )
        )
        for target in patch.targets
    )
    return patch._replace(targets=tuple(targets))


def under(clock: Clock, target: Target, original: Any) -> Any:
    """Build a target's wrapper, with clocks if the original and the wrapper are callable."""
    below = around(clock.inside)(original) if _is_called(original) else original
    made = target.factory(below)
    return around(clock.outside)(made) if _is_called(made) else made


def _is_called(attribute: Any) -> bool:
    plain = (FunctionType, classmethod, staticmethod)
    return isinstance(attribute, plain) or type(attribute) is property


def clocks_alone() -> float:
    """The median nanoseconds of the two clocks around an empty function."""
    clock = Clock()
    function = around(clock.outside)(around(clock.inside)(nothing))
    for _ in range(CALLS):
        function(1)
    return clock.median()


def guard_alone() -> float:
    """Nanoseconds that the guard of a patched function adds to a call of its wrapper."""
    wrapper = around(lambda original, *args: original(*args))
    target = Target("mlx-patches", __name__, "nothing", wrapper)
    patch = Patch("nothing", "nothing", (target,), "", __name__)
    manager = Manager(open_gate(patch))
    original = nothing
    manager.apply(patch, strict=True)
    try:
        return statistics.median(_each(nothing) - _each(wrapper(original)) for _ in range(9))
    finally:
        manager.restore()


def _each(function: Callable[[int], Any]) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        function(1)
    return (time.perf_counter_ns() - start) / CALLS


def nothing(value: int) -> int:
    """An empty function, for measuring the guard."""
    return value


if __name__ == "__main__":
    main()
