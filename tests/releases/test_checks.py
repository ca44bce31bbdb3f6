"""A target's ``when`` is False only if its layer returns what the original returns."""

import contextlib
import importlib
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mlx_patches.core.calls import compile_check
from mlx_patches.core.distributions import source_file
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import Patch, Target, around
from mlx_patches.lab import Family
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from ..patches.mutants import load_tests
from .conftest import is_tested, run_probe, sample_targets
from .models import build_or_skip

FAMILIES = {"mlx-lm": ("llama", "nemotron_h"), "mlx-vlm": ("gemma4", "qwen3_5")}


# The arguments of a call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Watched:
    """Runs layers without their checks, and records their effects if a check is false."""

    def __init__(self) -> None:
        self.applied: set[str] = set()
        self.passed: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    def patch(self, patch: Patch) -> Patch:
        """The patch with all its layers watched that have a check."""
        targets = [self.target(patch.id, one) if one.when else one for one in patch.targets]
        return patch._replace(targets=tuple(targets))

    def target(self, patch: str, target: Target) -> Target:
        """A watched target whose layer runs in every call."""
        calls: list[list[tuple[Any, Any]]] = []  # of the original, in each call of the layer

        def watch(original: Any) -> Any:
            def note(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if calls:
                    calls[-1].append((_arguments(original, args, kwargs), result))
                return result

            def run(layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                assert target.when
                is_needed = compile_check(target.when, layer)(*args, **kwargs)
                calls.append([])
                try:
                    result = layer(*args, **kwargs)
                finally:
                    seen = calls.pop()
                if not is_needed:
                    self.passed[patch] += 1
                    same = len(seen) == 1 and seen[0][1] is result
                    self.wrong[target.path] += not (
                        same and seen[0][0] == _arguments(layer, args, kwargs)
                    )
                return result

            self.applied.add(patch)
            return around(run)(target.factory(around(note)(original)))

        return target._replace(factory=watch, when=None, answers_none=True)


def _arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """A call's arguments with the defaults: their names, and the objects themselves."""
    bound = inspect.signature(inspect.unwrap(function)).bind(*args, **kwargs)
    bound.apply_defaults()
    return [*bound.arguments, *map(id, bound.args), *map(id, bound.kwargs.values())]


@pytest.mark.slow
@pytest.mark.parametrize("distribution", [name for name in FAMILIES if is_tested(name)])
def test_checked_layers_pass_through(distribution: str) -> None:
    watched, manager = Watched(), Manager(Gate(CompatMatrix.builtin()))
    try:
        for patch in catalogue.builtin():
            for target in patch.targets:
                if source_file(target.module):
                    importlib.import_module(target.module)
            manager.apply(watched.patch(patch))
        for family in FAMILIES[distribution]:
            model = build_or_skip(Family(distribution, family))
            for scenario in SCENARIOS.values():
                scenario(model)
        for patch in catalogue.builtin():
            for target in sample_targets(patch) if any(one.when for one in patch.targets) else ():
                run_probe(patch, target)
    finally:
        manager.restore()
    assert not +watched.wrong
    assert watched.applied - {*watched.passed} <= {*list_skipped_calls()}


ANSWER = [17]


def list_skipped_calls() -> dict[str, Call]:
    """The calls that checks skip, ``SKIPPED`` in a patch's tests, of patches whose probes and lab
    families make none.
    """
    found: dict[str, Call] = {}
    for patch in catalogue.builtin():
        if any(one.when for one in patch.targets):
            with contextlib.suppress(pytest.skip.Exception):  # tests that need another package
                found |= getattr(load_tests(patch), "SKIPPED", {})
    return found


def function_of(count: int, answer: Any) -> Callable[..., Any]:
    """A function with this many positional parameters, which checks read by position."""
    names = "".join(f"_{number}, " for number in range(count))
    made: Callable[..., Any] = eval(f"lambda {names}*args, **kwargs: answer", {"answer": answer})
    return made


@pytest.mark.parametrize(("patch", "call"), sorted(list_skipped_calls().items()))
def test_skipped_calls_pass_through(patch: str, call: Call) -> None:
    args, kwargs = call
    for target in catalogue.builtin().get(patch).targets:
        if target.when:
            watched = Watched()
            none = target.name.endswith(("advance", "extend", "__init__"))
            original = function_of(len(args), None if none else ANSWER)
            layer = watched.target(patch, target).factory(original)
            assert layer(*args, **kwargs) is (None if none else ANSWER)
            assert watched.passed
            assert not +watched.wrong


def test_wrong_check_is_found() -> None:
    watched = Watched()
    double = Target("mlx-lm", "m", "f", around(lambda original, x: 2 * original(x)))
    layer = watched.target("p", double._replace(when=lambda x: x > 9)).factory(lambda x: x)
    assert layer(10) == 20
    assert not +watched.wrong
    assert layer(9) == 18
    assert watched.wrong == {"m:f": 1}
