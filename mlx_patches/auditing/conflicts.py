"""Who else replaced functions of the releases in this process, and whether they still fit."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core import distributions
from ..core.fingerprint import functions_of
from ..core.foreign import describe
from ..core.packages import MODELS

# How the attributes begin that hosts leave on what they have changed, in lower case.
MARKERS = {"_batch_patched": "vllm-mlx", "_omlx_": "omlx", "_rapid_": "rapid-mlx"}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A method of a release that somebody exchanged whole, or what carries a host's marker.

    Args:
        target: ``module:Class.method``; of a marker also ``module:Class`` or ``module:function``.
        by: ``module:name`` of what stands there; of a marker the host that sets it.
        lacks: the parameters of the release's own that it does not take: the release's callers
            may pass them.
        marker: the attribute that says so, empty where the code itself does.
        distribution: what installed the module of ``by``; empty where nothing did.
    """

    target: str
    by: str
    lacks: tuple[str, ...] = ()
    marker: str = ""
    distribution: str = ""

    @property
    def finding(self) -> str:
        """One line where it does not fit; empty where it does."""
        if not self.lacks:
            return ""
        names = ", ".join(self.lacks)
        whose = f" of {self.distribution}" if self.distribution else ""
        return (
            f"{self.target} was replaced by {self.by}{whose}, which does not take {names}: leave"
            " that replacement out, or install the release that it was copied from"
        )

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "target": self.target,
            "by": self.by,
            "lacks": list(self.lacks),
            "marker": self.marker,
            "distribution": self.distribution,
        }


def replaced() -> list[Foreign]:
    """The methods of imported releases whose function is another package's, ours left out.

    A wrapper whose chain ends at the release's own function is no replacement.
    """
    found = []
    installers = cache(distributions.installers)  # read when first asked
    for name, module in _modules():
        for kind, attribute, function in _methods(module):
            if _is_foreign(function):
                target = f"{name}:{kind.__qualname__}.{attribute}"
                lacks = _lacks(module, f"{kind.__qualname__}.{attribute}", function)
                by = describe(function)
                owners = ", ".join(installers().get(_package(function), ()))
                found.append(Foreign(target, by, lacks, distribution=owners))
    return found


def marked() -> list[Foreign]:
    """The classes, methods and functions of imported releases that carry a host's marker."""
    found: dict[tuple[int, str], Foreign] = {}
    for name, module in _modules():
        for path, obj in _markable(module):
            for marker, host in _markers(obj):
                # Once: a function is imported by name into other modules.
                found.setdefault((id(obj), marker), Foreign(f"{name}:{path}", host, (), marker))
    return list(found.values())


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in MODELS and isinstance(module, ModuleType):
            yield name, module


def _markable(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        if not isinstance(value, type):
            yield name, value
        elif value.__module__ == module.__name__:
            yield value.__qualname__, value
            for attribute, member in list(vars(value).items()):
                function = getattr(member, "__func__", getattr(member, "fget", member))
                yield f"{value.__qualname__}.{attribute}", function


def _markers(obj: Any) -> Iterator[tuple[str, str]]:
    """An object's markers and their hosts; a host that takes its change back sets False."""
    if not callable(obj):
        return
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        for start, host in MARKERS.items():
            if name.lower().startswith(start) and value is not None and value is not False:
                yield name, host


def _methods(module: ModuleType) -> Iterator[tuple[type, str, Any]]:
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            for attribute, value in list(vars(kind).items()):
                for function in functions_of(value):
                    yield kind, attribute, function


def _package(function: Any) -> str:
    """The top-level package that a function was written in."""
    scope: str = getattr(function, "__globals__", {}).get("__name__", "")
    return scope.partition(".")[0]


def _is_foreign(function: Any) -> bool:
    package = _package(function)
    # What the standard library writes for a class: dataclasses and named tuples.
    made = package in sys.stdlib_module_names or package.startswith("namedtuple_")
    return bool(package) and not made and package not in (*MODELS, "mlx_patches")


def _lacks(module: ModuleType, name: str, function: Any) -> tuple[str, ...]:
    try:
        takes = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        return ()
    names = {parameter.name for parameter in takes}
    own = _parameters(getattr(module, "__file__", None) or "").get(name, ())
    return tuple(parameter for parameter in own if parameter not in names)


@cache
def _parameters(file: str) -> dict[str, tuple[str, ...]]:
    """Class.method to the names of its parameters, from a source file."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        f"{kind.name}.{method.name}": tuple(
            a.arg for a in (*method.args.args[1:], *method.args.kwonlyargs)
        )
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
    }
