"""A patched function looks released to ``inspect``, ``copy`` and ``pickle``."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlx_patches.core.fingerprint import accessors
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import MISSING
from mlx_patches.patches import catalogue
from mlx_patches.probes.child import open_gate
from tests.conformance import import_modules, live_object

from .conftest import every_patch

PATCHES = [parameter.values[0] for parameter in every_patch()]
# A function that MLX compiled has a type that cannot be subclassed, copied or pickled, and the
# random state of one thread. A Python function finds the right one for each thread.
COMPILED = ("gc_func", "_gc_func")
OF_COMPILED = ("type", "0 copied", "0 pickled")
KINDS = [
    *(inspect.isfunction, inspect.isgeneratorfunction, inspect.iscoroutinefunction),
    *(inspect.isasyncgenfunction, inspect.isbuiltin, inspect.isclass, inspect.isroutine),
]
NAMES = [
    *("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"),
    *("__defaults__", "__kwdefaults__", "__type_params__"),
]


def look(obj: Any, of_module: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"type": type(obj)}
    for index, function in enumerate(accessors(obj)):
        if function is not None:
            found = dict(_look_at(function, of_module))
            row |= {f"{index} {name}": value for name, value in found.items()}
    return row


def _look_at(function: Any, of_module: bool) -> Iterator[tuple[str, Any]]:
    yield "kind", [kind.__name__ for kind in KINDS if kind(function)]
    for name in NAMES:
        yield name, getattr(function, name, None)
    yield "signature", _result(lambda: str(inspect.signature(function)))
    yield "source", _result(lambda: inspect.getsource(function))
    yield "unwrapped", id(inspect.unwrap(function))
    yield "attributes", sorted({*getattr(function, "__dict__", {})} - {"__wrapped__"})
    yield "copied", _result(lambda: copy.copy(function) is copy.deepcopy(function) is function)
    if of_module:
        yield "pickled", _result(lambda: pickle.loads(pickle.dumps(function)) is function)


def _result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    targets = {target.path: target for patch in PATCHES for target in patch.targets}
    for patch in PATCHES:
        import_modules(patch)

    def rows() -> dict[str, dict[str, Any]]:
        live = {path: live_object(target) for path, target in targets.items()}
        return {
            path: look(obj, "." not in targets[path].name)
            for path, obj in live.items()
            if obj is not MISSING
        }

    before = rows()
    manager = Manager(open_gate(*PATCHES), catalogue.builtin())
    try:
        for patch in PATCHES:
            manager.apply(patch)
        after = rows()
        held = {site.path for site in manager.sites()}
    finally:
        manager.restore()
    assert rows() == before
    return {path: (row, after[path]) for path, row in before.items() if path in held}


@pytest.mark.parametrize("patch", every_patch())
def test_inspection(table, patch):
    paths = [target.path for target in patch.targets if target.path in table]
    if not paths:
        pytest.skip("the release has no target of the patch")
    unlike = {}
    for path in paths:
        before, after = table[path]
        assert before.keys() == after.keys()
        known = OF_COMPILED if before["type"].__name__ in COMPILED else ()
        names = [name for name in after if before.get(name) != after[name] and name not in known]
        if names:
            unlike[path] = {name: (before.get(name), after[name]) for name in names}
    assert not unlike
