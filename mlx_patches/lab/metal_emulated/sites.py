"""The places at which a release makes kernels, read from its files, and which of them ran."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from ...core.distributions import source_file


@dataclass(frozen=True, slots=True)
class Site:
    """A call of ``mx.fast.metal_kernel``: module, lines, and the name if it is a literal."""

    module: str
    first: int
    last: int
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.first}" + f" {self.name}" * bool(self.name)

    def contains(self, kernel: str) -> bool:
        """Whether a kernel's ``MODULE:LINE`` lies in this call."""
        module, _, line = kernel.rpartition(":")
        return module == self.module and self.first <= int(line) <= self.last


def sites(package: str) -> Iterator[Site]:
    """All calls in an installed package, found without importing it."""
    init = source_file(package)
    if init is None:
        return
    for file in sorted(init.parent.rglob("*.py")):
        text = file.read_bytes()
        if b"metal_kernel" not in text:
            continue
        place = (package, *file.relative_to(init.parent).with_suffix("").parts)
        module = ".".join(place).removesuffix(".__init__")
        calls = [one for one in ast.walk(ast.parse(text)) if _makes_a_kernel(one)]
        for call in sorted(calls, key=lambda one: one.lineno):
            yield Site(module, call.lineno, call.end_lineno or call.lineno, _name(call))


def split_by_reached(package: str, kernels: Iterable[str]) -> tuple[list[Site], list[Site]]:
    """Split a package's calls by whether ``kernels`` has their ``MODULE:LINE``."""
    ran, found = set(kernels), list(sites(package))
    seen = [one for one in found if any(map(one.contains, ran))]
    return seen, [one for one in found if one not in seen]


def _makes_a_kernel(node: ast.AST) -> TypeGuard[ast.Call]:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "metal_kernel"


def _name(node: ast.Call) -> str:
    for one in [word.value for word in node.keywords if word.arg == "name"] + node.args[:1]:
        return str(one.value) if isinstance(one, ast.Constant) else ""
    return ""
