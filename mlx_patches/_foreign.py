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

from ._effect import describe
from ._fingerprint import functions_of

PACKAGES = ("mlx_lm", "mlx_vlm")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A method of a release that somebody exchanged whole.

    Args:
        target: ``module:Class.method``.
        by: ``module:name`` of what stands there.
        lacks: the parameters of the release's own that it does not take: the release's callers
            may pass them.
    """

    target: str
    by: str
    lacks: tuple[str, ...]

    @property
    def finding(self) -> str:
        """One line where it does not fit; empty where it does."""
        if not self.lacks:
            return ""
        names = ", ".join(self.lacks)
        return (
            f"{self.target} was replaced by {self.by}, which does not take {names}: leave that"
            " replacement out, or install the release that it was copied from"
        )

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"target": self.target, "by": self.by, "lacks": list(self.lacks)}


def replaced() -> list[Foreign]:
    """The methods of imported releases whose function is another package's, ours left out.

    A wrapper whose chain ends at the release's own function is no replacement.
    """
    found = []
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and isinstance(module, ModuleType):
            for kind, attribute, function in _methods(module):
                if _is_foreign(function):
                    target = f"{name}:{kind.__qualname__}.{attribute}"
                    lacks = _lacks(module, f"{kind.__qualname__}.{attribute}", function)
                    found.append(Foreign(target, describe(function), lacks))
    return found


def _methods(module: ModuleType) -> Iterator[tuple[type, str, Any]]:
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            for attribute, value in list(vars(kind).items()):
                for function in functions_of(value):
                    yield kind, attribute, function


def _is_foreign(function: Any) -> bool:
    scope = getattr(function, "__globals__", {}).get("__name__", "")
    package = scope.partition(".")[0]
    # What the standard library writes for a class: dataclasses and named tuples.
    made = package in sys.stdlib_module_names or package.startswith("namedtuple_")
    return bool(package) and not made and package not in (*PACKAGES, "mlx_patches")


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
