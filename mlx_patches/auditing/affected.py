"""The patches that each model needs on the installed releases."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ..core.distributions import source_file
from ..core.packages import MODEL_PACKAGES, MODELS
from ..core.patch import Patch, Target
from ..core.registry import Registry
from ..matrix.gate import Gate
from .models import exists

# Regular expressions, because parsing two hundred files a package would take too long.
_FROM = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([\w.]+)", re.MULTILINE)
_NAME = re.compile(r"\w+")
# Prefixes of the modules of models and of their building blocks.
MODEL_CODE = tuple(f"{one}." for one in MODEL_PACKAGES)

Needs = Callable[[Patch, Target], bool]
Find = Callable[[str], Path | None]
# Distribution to model to the patches that its cells needed, for models with every repair traced.
Measured = Mapping[str, Mapping[str, Sequence[str]]]


def affected_models(
    gate: Gate,
    registry: Registry,
    needs: Needs,
    measured: Measured = MappingProxyType({}),
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Model to distribution to the patches that it needs in this environment.

    Measurements of a model in this release outrank its entry in the matrix, which may come from
    other releases. In both cases a patch counts only if the model runs a target that needs it: a
    target in the model's own module, in a module that it imports, or in its distribution's engine.
    Targets in other families, or in distributions that the model does not use, do not count.

    Args:
        gate: has the models' entries.
        registry: has the patches that the entries name.
        needs: whether the installed release of a target needs the patch there.
        measured: the patches measured on the installed releases, see ``needed_here``.
    """

    @cache
    def needed(patch_id: str) -> tuple[Target, ...]:
        patch = registry.declared(patch_id)
        return tuple(target for target in patch.targets if needs(patch, target))

    find = source_files().get
    entries = gate.matrix.models
    models = dict.fromkeys(model for known in (entries, *measured.values()) for model in known)
    affected: dict[str, dict[str, tuple[str, ...]]] = {}
    for model in models:
        for package, distribution in MODEL_PACKAGES.items():
            ids = measured.get(distribution, {}).get(model)
            if ids is None:
                ids = gate.patches_for(model, distribution) if model in entries else ()
            ids = [id_ for id_ in ids if id_ in registry and needed(id_)]
            if not ids or not exists(f"{package}.{model}"):
                continue
            reached = modules_of(package, model, find)
            ids = [id_ for id_ in ids if any(runs(t, package, reached) for t in needed(id_))]
            if ids:
                affected.setdefault(model, {})[distribution] = tuple(ids)
    return affected


def modules_of(package: str, model: str, find: Find = source_file) -> set[str]:
    """The modules that a model runs, found by following imports from its modules and the engine.

    Args:
        package: the package of models.
        model: the model's module in that package.
        find: returns the source file of a module.
    """
    generate = f"{package.partition('.')[0]}.generate"
    left = [*_modules(f"{package}.{model}", find), f"{package}.cache", f"{package}.base", generate]
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


def _modules(name: str, find: Find) -> Iterator[str]:
    """A module and, if it is a package, its direct submodules."""
    yield name
    path = find(name)
    if path and path.name == "__init__.py":
        yield from (f"{name}.{file.stem}" for file in path.parent.glob("[!_]*.py"))


def source_files() -> dict[str, Path]:
    """The source file of each module of the packages; finding them one by one is slower."""
    found: dict[str, Path] = {}
    for package in MODELS:
        init = source_file(package)
        top = init.parent if init else Path(os.devnull)
        for folder, _, files in os.walk(top):
            inside = os.path.relpath(folder, top)
            base = [package, *(inside.split(os.sep) if inside != os.curdir else ())]
            for file in files:
                stem, extension = os.path.splitext(file)
                if extension == ".py":
                    parts = base if stem == "__init__" else [*base, stem]
                    found[".".join(parts)] = Path(folder, file)
    return found


@cache
def _imports(module: str, path: Path) -> tuple[str, ...]:
    """The names that a file imports from packages of models, which may be modules of these."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    parts = module.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    found = dict.fromkeys(_IMPORT.findall(text))
    for source, names in _FROM.findall(text):
        dots = len(source) - len(source.lstrip("."))
        base = package[: len(package) - dots + 1] if dots else []
        name = ".".join([*base, *filter(None, source.lstrip(".").split("."))])
        found[name] = None
        # A name imported from a package may be one of its modules.
        found.update(dict.fromkeys(f"{name}.{one}" for one in _NAME.findall(names)))
    return tuple(name for name in found if name.partition(".")[0] in MODELS)
