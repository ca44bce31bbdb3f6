"""Reads the models' modules of the installed releases: files, imports, Metal-only code.

Imports are found by regular expressions, because parsing two hundred files per package would take
too long. Only ``metal_branches`` parses files: it follows single definitions.
"""

import ast
import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

from ..core.distributions import source_file
from ..core.packages import MODEL_PACKAGES, MODELS
from ..core.patch import Target

# A literal first character is found four times as fast as "^".
_FROM = re.compile(r"\n[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)")
_IMPORT = re.compile(r"\n[ \t]*import[ \t]+([\w.]+)")
_NAME = re.compile(r"\w+")
# Prefixes of the modules with models and their building blocks.
MODEL_CODE = tuple(f"{one}." for one in MODEL_PACKAGES)

# Returns the source file of a module.
Find = Callable[[str], Path | None]
# A module and a top-level name in it; an empty name stands for the whole module.
Place = tuple[str, str]


def package_of_models(distribution: str) -> str:
    return {name: package for package, name in MODEL_PACKAGES.items()}[distribution]


def source_files() -> dict[str, Path]:
    """The source file of each module of the packages; finding them one by one is slower."""
    found: dict[str, Path] = {}
    for package in MODELS:
        init = source_file(package)
        top = init.parent if init else Path(os.devnull)
        for folder, _, files in os.walk(top):
            inside = os.path.relpath(folder, top)
            base = [package, *(inside.split(os.sep) if inside != os.curdir else ())]
            path, name = Path(folder), ".".join(base)
            for file in files:
                if file.endswith(".py"):
                    stem = file.removesuffix(".py")
                    found[name if stem == "__init__" else f"{name}.{stem}"] = path / file
    return found


def modules_of(package: str, model: str, find: Find = source_file) -> set[str]:
    """The modules that a model runs, found by following imports from its modules and the engine."""
    generate = f"{package.partition('.')[0]}.generate"
    own = _with_submodules(f"{package}.{model}", find)
    left = [*own, f"{package}.cache", f"{package}.base", generate]
    reached: set[str] = set()
    while left:
        module = left.pop()
        if module in reached:
            continue
        reached.add(module)
        path = find(module)
        if path and module.startswith((generate, *MODEL_CODE)):
            left += (name for name in _imports(module, path) if find(name))
    return reached


def runs(target: Target, package: str, reached: Collection[str]) -> bool:
    """Whether a model runs a target: in a module it reaches, or in its distribution's engine."""
    own = target.module.partition(".")[0] == package.partition(".")[0]
    return target.module in reached or (own and not target.module.startswith(f"{package}."))


def metal_branches(package: str, family: str, find: Find = source_file) -> tuple[str, ...]:
    """The modules in which a family has Metal-only code.

    The lab measures on a CPU, on which such code does not run. A family has some if its code uses,
    directly or through other definitions, a function or class that checks for Metal or for the
    default device, or that makes a Metal kernel.
    """
    left = [
        (module, name)
        for module in _with_submodules(f"{package}.{family}", find)
        # These build inputs, configs and weight files; the model does not run them.
        if not module.rpartition(".")[2].startswith(("processing", "config", "convert"))
        for name in _read(module, find(module)).uses
    ]
    seen, found = set(left), set()
    while left:
        module, name = left.pop()
        code = _read(module, find(module))
        if name in code.metal:
            prefix, _, inside = module.partition(".models.")
            found.add(inside or prefix.partition(".")[2])
        used = {place for use in code.uses[name] for place in _find_uses(module, use, find)} - seen
        seen |= used
        left += used
    return tuple(sorted(found))


def _with_submodules(name: str, find: Find) -> Iterator[str]:
    path = find(name)
    yield name
    if path and path.name == "__init__.py":
        yield from (f"{name}.{file.stem}" for file in path.parent.glob("[!_]*.py"))


def _absolute(module: str, path: Path | None, level: int, name: str) -> str:
    """The full name of what a module imports from ``name``, after this many dots."""
    parts = module.split(".")
    inside = parts if path and path.name == "__init__.py" else parts[:-1]
    base = inside[: len(inside) - level + 1] if level else []
    return ".".join([*base, *filter(None, name.split("."))])


@cache
def _imports(module: str, path: Path) -> tuple[str, ...]:
    """The names that a file imports from packages of models, which may be modules of these."""
    try:
        text = "\n" + path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    found = dict.fromkeys(_IMPORT.findall(text))
    for source, names in _FROM.findall(text):
        stripped = source.lstrip(".")
        name = _absolute(module, path, len(source) - len(stripped), stripped)
        found[name] = None
        # A name imported from a package may be one of its modules.
        found.update(dict.fromkeys(f"{name}.{one}" for one in _NAME.findall(names)))
    return tuple(name for name in found if name.partition(".")[0] in MODELS)


class _Code:
    """A parsed file; empty if it is missing or not Python.

    ``uses`` maps each top-level definition to the names that it uses: (name, "") and, of another
    module, (alias, name). ``metal`` has the definitions that check for Metal. ``imports`` maps a
    name to its place, and ``stars`` are the modules from which everything is imported.
    """

    def __init__(self, module: str, path: Path | None):
        self.module, self.path = module, path
        self.uses: dict[str, set[Place]] = {}
        self.metal: set[str] = set()
        self.imports: dict[str, Place] = {}
        self.stars: list[str] = []
        try:
            tree = ast.parse(path.read_bytes()) if path else ast.Module([], [])
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        for statement in tree.body:
            self._define(statement)

    def _define(self, node: ast.stmt, in_check: bool = False) -> None:
        """Add a statement's definitions; ``in_check``: it is inside a check for Metal."""
        names: list[str] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            in_check |= isinstance(node, ast.If) and self._examine(node.test)[1]
            for child in ast.iter_child_nodes(node):
                for inner in child.body if isinstance(child, ast.ExceptHandler) else [child]:
                    if isinstance(inner, ast.stmt):
                        self._define(inner, in_check)
            return
        uses, metal = self._examine(node)
        for name in names:
            self.uses.setdefault(name, set()).update(uses)
            if metal or in_check:
                self.metal.add(name)

    def _examine(self, tree: ast.AST) -> tuple[set[Place], bool]:
        """The names that code uses, and whether it checks for Metal; resolved by the imports."""
        uses: set[Place] = set()
        metal, left = False, [tree]
        while left:
            node = left.pop()
            if isinstance(node, ast.Name):
                uses.add((node.id, ""))
            elif isinstance(node, ast.Import):
                self.imports |= {a.asname or a.name: (a.name, "") for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = _absolute(self.module, self.path, node.level, node.module or "")
                self.imports |= {a.asname or a.name: (source, a.name) for a in node.names}
                self.stars += [source for a in node.names if a.name == "*"]
            elif isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Name):
                    uses.add((node.value.id, node.attr))
                metal |= node.attr == "metal_kernel"
                metal |= node.attr == "is_available" and _last(node.value) == "metal"
            elif isinstance(node, ast.Compare):
                sides = (node.left, *node.comparators)
                calls = (_last(one.func) for one in sides if isinstance(one, ast.Call))
                metal |= "default_device" in calls
            elif isinstance(node, ast.Call) and _last(node.func) == "isinstance":
                left += node.args[:1]  # a type check does not run its class
                continue
            left += ast.iter_child_nodes(node)
        return uses, metal


_read = cache(_Code)


def _find_uses(module: str, use: Place, find: Find) -> Iterator[Place]:
    name, member = use
    if not member:
        yield from _places(module, name, find)
        return
    whole = ".".join(filter(None, _read(module, find(module)).imports.get(name, ())))
    if whole and find(whole) is not None:
        yield from _places(whole, member, find)


def _places(module: str, name: str, find: Find, depth: int = 8) -> Iterator[Place]:
    """The places of a module's name, following imports in packages of models."""
    package, _, inside = module.partition(".")
    # The engine checks for Metal only to limit memory, which does not affect a model's results.
    if not depth or package not in MODELS or inside.partition(".")[0] == "generate":
        return
    here = _read(module, find(module))
    if name in here.uses:
        yield module, name
    elif name in here.imports:
        target, inner = here.imports[name]
        if inner:
            yield from _places(target, inner, find, depth - 1)
    else:
        for star in here.stars:
            yield from _places(star, name, find, depth - 1)


def _last(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
