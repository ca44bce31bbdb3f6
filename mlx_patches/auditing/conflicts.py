"""Finds functions that other packages replaced, and checks whether the replacements still fit."""

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
from ..core.record import fields

# Lower-case prefix of the attributes by which a host marks objects that it changed, to the host.
MARKERS = {"_batch_patched": "vllm-mlx", "_omlx_": "omlx", "_rapid_": "rapid-mlx"}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A method of a release that a third party replaced, or an object with a host's marker.

    Args:
        target: ``module:Class.method``; with a marker also ``module:Class`` or
            ``module:function``.
        by: ``module:name`` of the replacement; with a marker, the host that sets it.
        lacks: parameters of the release's method that the replacement does not accept, although
            the release's callers may pass them.
        marker: the marker attribute; empty if the function itself is a replacement.
    """

    target: str
    by: str
    lacks: tuple[str, ...] = ()
    marker: str = ""
    distribution: str = ""

    @property
    def finding(self) -> str:
        """One line if the replacement does not fit; empty if it fits."""
        if not self.lacks:
            return ""
        names = ", ".join(self.lacks)
        whose = f" of {self.distribution}" if self.distribution else ""
        return (
            f"{self.target} was replaced by {self.by}{whose}, which does not accept {names}:"
            " remove that replacement, or install the release that it was copied from"
        )

    def as_dict(self) -> dict[str, Any]:
        return fields(self, *self.__slots__)


def find_replaced() -> list[Foreign]:
    """The methods of imported releases that other packages than mlx_patches replaced.

    A wrapper around the release's own function is not a replacement.
    """
    found = []
    installers = cache(distributions.installers)  # read on first use
    for name, module in _modules():
        for path, function in _methods(module):
            scope: str = getattr(function, "__globals__", {}).get("__name__", "")
            package = scope.partition(".")[0]
            # Methods that the standard library generates for dataclasses and named tuples.
            made = package in sys.stdlib_module_names or package.startswith("namedtuple_")
            if package and not made and package not in (*MODELS, "mlx_patches"):
                lacks = _lacks(module, path, function)
                owners = ", ".join(installers().get(package, ()))
                found.append(
                    Foreign(f"{name}:{path}", describe(function), lacks, distribution=owners)
                )
    return found


def find_marked() -> list[Foreign]:
    """The classes, methods and functions of imported releases that carry a host's marker."""
    found: dict[tuple[int, str], Foreign] = {}
    for name, module in _modules():
        for path, obj in _markable(module):
            for marker, host in _markers(obj):
                # Listed once, even if other modules import the same function by name.
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
    """An object's markers and their hosts; a host that undoes a change sets its marker to False."""
    if not callable(obj):
        return
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        for start, host in MARKERS.items():
            if name.lower().startswith(start) and value is not None and value is not False:
                yield name, host


def _methods(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            for attribute, value in list(vars(kind).items()):
                for function in functions_of(value):
                    yield f"{kind.__qualname__}.{attribute}", function


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
