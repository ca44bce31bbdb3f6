"""The tests that every patch must pass; ``python -m tests.conformance`` runs their steps."""

import functools
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wrapt

import mlx_patches
from mlx_patches import MlxPatchesError
from mlx_patches.activation.session import Session
from mlx_patches.core.manager import Manager
from mlx_patches.core.outcome import Status
from mlx_patches.core.packages import UNMEASURED
from mlx_patches.core.patch import MISSING, Patch, Target
from mlx_patches.core.registry import Registry
from mlx_patches.core.site import Composed, Site
from mlx_patches.probes.child import open_gate

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """A patch, with a matrix in which every release is affected.

    ``path`` is an entry of ``sys.path`` that a child process needs to import the patch.
    """

    patch: Patch
    path: str = ""

    def manager(self) -> Manager:
        return Manager(open_gate(self.patch))

    def child(self, *steps: str) -> list[dict[str, list[str]]]:
        """Run steps in a new process; see ``main``."""
        path = os.pathsep.join(filter(None, (str(ROOT), self.path)))
        done = subprocess.run(
            [sys.executable, "-m", "tests.conformance", self.patch.module, self.patch.id, *steps],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


class Conformance:
    """The tests. A subclass provides the fixture ``case``."""

    @pytest.fixture
    def before(self, case: Case) -> Iterator[dict[str, Any]]:
        """The live objects before the test; they must be back after it."""
        import_modules(case.patch)
        objects = snapshot(case.patch)
        yield objects
        assert_same(snapshot(case.patch), objects)

    @pytest.fixture
    def present(self, case: Case, before: dict[str, Any]) -> list[Target]:
        """The targets that exist in this environment and would be patched."""
        outcomes = case.manager().apply(case.patch, dry_run=True)
        ready = {outcome.target for outcome in outcomes if outcome.status is Status.PENDING}
        assert ready, "this environment has none of the patch's targets"
        return [t for t in case.patch.targets if t.path in ready and t.module in sys.modules]

    @pytest.fixture
    def paths(self, present: list[Target]) -> list[str]:
        return [target.path for target in present]

    @pytest.fixture
    def manager(self, case: Case, before: dict[str, Any]) -> Iterator[Manager]:
        made = case.manager()
        yield made
        made.restore()

    def test_apply(self, case, before, paths, manager):
        outcomes = manager.apply(case.patch)
        live = snapshot(case.patch)
        assert list_applied(outcomes) == paths
        assert list_applied(manager.status()) == paths
        assert [path for path in targets_of(case) if live[path] is not before[path]] == paths

    def test_apply_twice(self, case, manager):
        first = manager.apply(case.patch)
        objects = snapshot(case.patch)
        assert manager.apply(case.patch) == first
        assert_same(snapshot(case.patch), objects)

    def test_dry_run(self, case, before, manager):
        assert not list_applied(manager.apply(case.patch, dry_run=True))
        assert manager.status() == []
        assert_same(snapshot(case.patch), before)

    def test_restore(self, case, before, paths, manager):
        manager.apply(case.patch)
        restored = manager.restore()
        assert [outcome.target for outcome in restored] == paths[::-1]
        assert {outcome.status for outcome in restored} == {Status.DISABLED}
        assert not list_applied(manager.status())
        assert_same(snapshot(case.patch), before)
        assert manager.restore() == []

    def test_apply_restore_apply(self, case, before, paths, manager):
        first = manager.apply(case.patch)
        manager.restore()
        assert manager.apply(case.patch) == first
        assert list_applied(manager.status()) == paths

    @pytest.mark.parametrize("kind", ["wrapt", "closure"])
    def test_wrapper_on_top_stays(self, case, before, present, paths, manager, kind):
        manager.apply(case.patch)
        ours = snapshot(case.patch)
        theirs = {target.path: put_on_top(kind, target) for target in present}
        assert list_applied(manager.status()) == paths
        assert list_applied(manager.apply(case.patch)) == paths
        restored = {outcome.target: outcome for outcome in manager.restore()}
        live = snapshot(case.patch)
        for target in present:
            assert live[target.path] is theirs[target.path]
            # An attribute that a patch adds has no original that could stay below the wrapper.
            kept = Status.APPLIED if target.defines_new_attribute else Status.DISABLED
            assert restored[target.path].status is kept, restored[target.path]
            assert not target.defines_new_attribute or any(
                link is function_of(ours[target.path]) for link in links(live[target.path])
            )
        for target in present:  # the other package takes its wrappers off
            write(*place(target), before[target.path])

    def test_wrapper_below_stays(self, case, before, present, paths, manager):
        wrapped = [target for target in present if not target.defines_new_attribute]
        theirs = {target.path: put_on_top("closure", target) for target in wrapped}
        assert list_applied(manager.apply(case.patch)) == paths
        manager.restore()
        live = snapshot(case.patch)
        assert [path for path in theirs if live[path] is not theirs[path]] == []
        for target in wrapped:
            write(*place(target), before[target.path])

    def test_missing_target_is_absent(self, case, before, present, manager):
        gone = present[0]
        if gone.defines_new_attribute:  # remove the class that the attribute would be added to
            owner, attribute = sys.modules[gone.module], gone.name.partition(".")[0]
        else:
            owner, attribute = place(gone)
        kept = vars(owner)[attribute]
        delattr(owner, attribute)
        try:
            outcomes = {outcome.target: outcome for outcome in manager.apply(case.patch)}
            manager.restore()
        finally:
            setattr(owner, attribute, kept)
        # Every release of an unmeasured distribution needs the patch.
        needed = gone.distribution in UNMEASURED
        assert outcomes[gone.path].status is (Status.FAILED if needed else Status.ABSENT)
        assert outcomes[gone.path].finding == needed

    def test_failing_factory_leaves_nothing(self, case, before, present, paths):
        for target in present:
            manager = case.manager()
            outcomes = manager.apply(
                with_factory(case.patch, target, raising(ValueError("on purpose")))
            )
            assert [o.target for o in outcomes if o.status is Status.FAILED] == paths
            assert not list_applied(manager.status())
            assert_same(snapshot(case.patch), before)

    def test_interrupted_factory_leaves_nothing(self, case, before, present):
        for target in present:
            manager = case.manager()
            with pytest.raises(KeyboardInterrupt):
                manager.apply(with_factory(case.patch, target, raising(KeyboardInterrupt())))
            assert not list_applied(manager.status())
            assert_same(snapshot(case.patch), before)

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_failing_write_leaves_nothing(self, case, before, present, monkeypatch, error):
        for target in present:
            manager = case.manager()
            with monkeypatch.context() as patched:
                patched.setattr(Site, "install", raising_after(target, error, Site.install))
                if error is KeyboardInterrupt:
                    with pytest.raises(KeyboardInterrupt):
                        manager.apply(case.patch)
                else:
                    assert not list_applied(manager.apply(case.patch))
            assert not list_applied(manager.status())
            assert_same(snapshot(case.patch), before)

    def test_ineffective_write_is_rolled_back(self, case, before, present, paths, monkeypatch):
        for target in present:
            manager = case.manager()
            with monkeypatch.context() as patched:
                patched.setattr(Site, "install", skipping(target, Site.install))
                outcomes = manager.apply(case.patch)
            assert [o.target for o in outcomes if o.status is Status.FAILED] == paths
            assert_same(snapshot(case.patch), before)

    def test_strict(self, case, before, present, manager):
        broken = with_factory(case.patch, present[-1], raising(ValueError("on purpose")))
        with pytest.raises(MlxPatchesError, match="on purpose") as raised:
            manager.apply(broken, strict=True)
        assert str(raised.value).startswith(f"{case.patch.id} is not in effect: ")
        assert_same(snapshot(case.patch), before)

    def test_lost_patch_is_reapplied(self, case, before, present, paths, manager):
        manager.apply(case.patch)
        for target in present:
            write(*place(target), before[target.path])
        lost = [outcome.target for outcome in manager.status() if outcome.status is Status.LOST]
        assert lost == paths
        assert not list_applied(manager.status())
        assert list_applied(manager.apply(case.patch)) == paths
        assert list_applied(manager.status()) == paths

    def test_forked_child(self, case, before, paths, manager):
        manager.apply(case.patch)

        def child() -> None:
            assert list_applied(manager.status()) == paths
            manager.restore()
            assert_same(snapshot(case.patch), before)

        assert fork_check(child) == 0
        assert list_applied(manager.status()) == paths

    def test_patch_first_in_another_process(self, case, paths):
        on, off = case.child("apply", "import", "status", "restore", "status")
        assert on == {"applied": paths, "changed": paths}
        assert off == {"applied": [], "changed": []}

    def test_import_first_in_another_process(self, case, paths):
        untouched, on, off = case.child("import", "status", "apply", "status", "restore", "status")
        assert untouched == off == {"applied": [], "changed": []}
        assert on == {"applied": paths, "changed": paths}

    def test_restore_before_import(self, case, paths):
        (off,) = case.child("apply", "restore", "import", "status")
        assert off == {"applied": [], "changed": []}


def import_modules(patch: Patch) -> None:
    for target in patch.targets:
        try:
            importlib.import_module(target.module)
        except ModuleNotFoundError as error:
            if not error.name or not f"{target.module}.".startswith(f"{error.name}."):
                raise


def place(target: Target) -> tuple[Any, str]:
    """The owner and the attribute name of a target.

    Raises:
        KeyError: the target does not exist, or its module only imports the class or function.
    """
    owner: Any = sys.modules[target.module]
    *parents, attribute = target.name.split(".")
    for name in parents:
        owner = vars(owner)[name]
        if owner.__module__ != target.module:
            raise KeyError(name)
    function = None if parents else vars(owner).get(attribute)
    if getattr(function, "__module__", target.module) != target.module:
        raise KeyError(attribute)
    return owner, attribute


def live_object(target: Target) -> Any:
    try:
        owner, attribute = place(target)
    except KeyError:
        return MISSING
    return vars(owner).get(attribute, MISSING)


def snapshot(patch: Patch) -> dict[str, Any]:
    """The live object of each target, and objects of the same name in its package's modules."""
    found = {target.path: live_object(target) for target in patch.targets}
    for target in patch.targets:
        package = target.module.partition(".")[0]
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package and target.name in vars(module):
                found[f"{target.name} in {name}"] = vars(module)[target.name]
    return found


def assert_same(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Every object is identical, not only equal."""
    assert now.keys() == then.keys()
    assert [path for path in then if now[path] is not then[path]] == []


def write(owner: Any, attribute: str, value: Any) -> None:
    if value is MISSING:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, value)


def list_applied(outcomes: Any) -> list[str]:
    return [outcome.target for outcome in outcomes if outcome.status is Status.APPLIED]


def targets_of(case: Case) -> list[str]:
    return [target.path for target in case.patch.targets]


def put_on_top(kind: str, target: Target) -> Any:
    """Wrap the live object as another package would; returns the new live object."""
    owner, attribute = place(target)
    theirs = wrap(kind, vars(owner)[attribute])
    setattr(owner, attribute, theirs)
    return theirs


def wrap(kind: str, obj: Any) -> Any:
    if isinstance(obj, property):
        return property(wrap(kind, obj.fget), obj.fset, obj.fdel, obj.__doc__)
    if kind == "wrapt":
        return wrapt.FunctionWrapper(obj, passing_on)
    if isinstance(obj, (classmethod, staticmethod)):
        return type(obj)(wrap(kind, obj.__func__))

    @functools.wraps(obj)
    def closure(*args: Any, **kwargs: Any) -> Any:
        return obj(*args, **kwargs)

    return closure


def passing_on(inner: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return inner(*args, **kwargs)


def function_of(obj: Any) -> Any:
    if issubclass(type(obj), property):
        return obj.fget
    return obj.__func__ if type(obj) in (classmethod, staticmethod) else obj


def links(obj: Any) -> Iterator[Any]:
    yield function_of(obj)
    while hasattr(obj := function_of(obj), "__wrapped__"):
        obj = obj.__wrapped__
        yield function_of(obj)


def with_factory(patch: Patch, target: Target, factory: Callable[[Any], Any]) -> Patch:
    changed = target._replace(factory=factory)
    targets = tuple(changed if one is target else one for one in patch.targets)
    return patch._replace(targets=targets)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def factory(original: Any) -> Any:
        raise error

    return factory


def skipping(target: Target, write: Callable[..., None]) -> Callable[..., None]:
    """A ``Site.install`` that skips the write to one target."""

    def lossy(site: Site, composed: Composed) -> None:
        if site.path != target.path:
            write(site, composed)

    return lossy


def raising_after(
    target: Target, error: type[BaseException], write: Callable[..., None]
) -> Callable[..., None]:
    """A ``Site.install`` that raises after it has written one target's layer."""

    def interrupt(site: Site, composed: Composed) -> None:
        write(site, composed)
        if site.path == target.path and composed.layers:
            raise error("on purpose")

    return interrupt


def fork_check(check: Callable[[], None]) -> int:
    """The exit status of a forked child that runs a check: 0 if the check did not raise."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(module: str, patch_id: str, *steps: str) -> None:
    """Run steps (``import``, ``apply``, ``restore``); print the findings of each ``status``."""
    declared = vars(importlib.import_module(module)).values()
    patch = next(one for one in declared if isinstance(one, Patch) and one.id == patch_id)
    patch = patch._replace(module=module)  # the catalogue knows that of a built-in one
    registry = Registry()
    registry.add(patch)
    session = Session(registry, open_gate(patch).matrix)
    found = []
    for step in steps:
        if step == "import":
            import_modules(patch)
        elif step == "apply":
            session.apply([patch.id], None, strict=False, dry_run=False)
        elif step == "restore":
            session.restore(None)
        elif step == "status":
            changed = [t.path for t in patch.targets if is_ours(t, patch)]
            found.append({"applied": list_applied(session.status()), "changed": changed})
    print(json.dumps(found))


def is_ours(target: Target, patch: Patch) -> bool:
    """True if the code of a live object is in mlx_patches or in the patch's module.

    A plain value is ours where the release defines none.
    """
    live = live_object(target)
    function = function_of(live)
    if live is not MISSING and not hasattr(function, "__code__") and not callable(live):
        return target.defines_new_attribute
    function = getattr(function, "func", function)  # a partial
    code = getattr(function, "__code__", None)
    ours = (str(Path(mlx_patches.__file__).parent), sys.modules[patch.module].__file__)
    return code is not None and code.co_filename.startswith(ours)


if __name__ == "__main__":
    main(*sys.argv[1:])
