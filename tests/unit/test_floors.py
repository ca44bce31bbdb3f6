"""Which part of the package may import which, and who may write to attributes by name."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import mlx_patches

ROOT = Path(mlx_patches.__file__).parent
PUBLIC = {"mlx_patches", "mlx_patches.auto", "mlx_patches.plugin"}

# The parts that each part may import. ``public`` is the package's own interface, which imports the
# other parts only when it is called.
BELOW = {
    "core": set(),
    "matrix": {"core"},
    "patches": {"core"},
    "evidence": {"core"},
    "activation": {"core", "matrix", "patches", "public"},
    "auditing": {"core", "matrix", "activation", "evidence", "public"},
    "probes": {"core", "matrix", "patches", "evidence", "activation", "auditing", "lab", "public"},
    "lab": {"core", "matrix", "patches", "evidence", "activation", "auditing", "public"},
    "report": {"core", "matrix", "evidence", "activation", "auditing", "lab", "public"},
    "public": {"core", "activation", "auditing"},
}
TOP = {"cli", "options", "__main__"}

# The modules that the public modules may import at import time.
AT_ONCE = {
    "mlx_patches": {"mlx_patches", "mlx_patches.core.errors"},
    "mlx_patches.auto": {
        "mlx_patches",
        "mlx_patches.activation.started",
        "mlx_patches.activation.settings",
    },
    "mlx_patches.plugin": {
        "mlx_patches.core.contribution",
        "mlx_patches.core.errors",
        "mlx_patches.core.patch",
        "mlx_patches.core.verbs",
    },
}

# The files that may set or delete attributes by name, and the objects that they may change. Only
# core changes a class or a module of a release. A name that ends in a slash is a folder.
MAY_SET = {
    "core/": "a release's own attributes: this is where patches are put in and taken out",
    "lab/engine.py": "a model that the lab built, and the state of a prompt that it keeps",
    "lab/generators.py": "a model that the lab built, as a release's engine sets it",
    "lab/metal_emulated/mac.py": "MLX's report of its device, in a process of the lab",
    "lab/offline.py": "a model that the lab built: its vision parts are left out",
    "patches/caches/": "a cache object that the patched method got or made",
    "patches/models/row_by_row/patch.py": "the positions of a prompt that the model object keeps",
    "patches/vllm_mlx/vllm_prefix/hit.py": "a copy of a cache object, which the request owns",
    "patches/vllm_mlx/vllm_prefix/stored.py": "a copy of a cache object, for the prefix cache",
    "patches/loading/extra_eos/probe.py": "a module that the probe itself made",
}


class Import(NamedTuple):
    """One module's import of another; ``when`` is "at once", "later" or "typing"."""

    importer: str
    imported: str
    when: str


def modules() -> dict[str, Path]:
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = (ROOT.name, *file.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = file
    return found


MODULES = modules()
SETTING = ("setattr", "delattr")
# Only these hold statements, and an import is a statement.
BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def imports(module: str) -> Iterator[Import]:
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    left: list[tuple[ast.AST, str]] = [(ast.parse(path.read_bytes()), "at once")]
    while left:
        node, when = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            when = "later"
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            left += [(child, "typing") for child in node.body]
            left += [(child, when) for child in node.orelse]
            continue
        left += [(child, when) for child in ast.iter_child_nodes(node) if isinstance(child, BLOCKS)]
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            inner = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else source for name in inner]
        for name in dict.fromkeys(names):
            if name.partition(".")[0] == ROOT.name:
                yield Import(module, name, when)


IMPORTS = [one for module in MODULES for one in imports(module)]


def part(module: str) -> str:
    """A module's part; a patch's probe belongs to the probes."""
    if module.startswith(f"{ROOT.name}.patches.") and is_probe(module):
        return "probes"
    return "public" if module in PUBLIC else module.split(".")[1]


def is_probe(module: str) -> bool:
    return module.rpartition(".")[2].startswith("probe")


def below(module: str) -> str:
    return module.removeprefix(f"{ROOT.name}.")


def test_every_module_has_a_floor():
    assert {part(module) for module in MODULES} == {*BELOW, *TOP}
    assert {one.imported for one in IMPORTS} <= set(MODULES)


def test_imports_go_down():
    upward = {
        (below(one.importer), below(one.imported))
        for one in IMPORTS
        if part(one.importer) not in TOP
        and part(one.imported) not in {part(one.importer), *BELOW[part(one.importer)]}
    }
    assert upward == set()
    floors = {name: under - {"public"} for name, under in BELOW.items()}
    assert list(graphlib.TopologicalSorter(floors).static_order())


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_modules_are_lazy(module):
    at_once = {i.imported for i in IMPORTS if (i.importer, i.when) == (module, "at once")}
    assert at_once == AT_ONCE[module]


def test_no_import_cycles():
    """Late imports and imports for types count too, except of the package's own functions."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in IMPORTS:
        if one.imported not in (one.importer, ROOT.name):
            graph[one.importer].add(one.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(map(below, reversed(error.args[1]))))


def test_only_core_sets_attributes():
    setting = {
        path.relative_to(ROOT).as_posix()
        for path in MODULES.values()
        if any(name in (source := path.read_text()) for name in SETTING)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id in SETTING
    }
    # Deleting a patch deletes its place.
    places = tuple(place for place in MAY_SET if (ROOT / place).exists())
    assert {file for file in setting if not file.startswith(places)} == set()
    assert {place for place in places if not any(f.startswith(place) for f in setting)} == set()
