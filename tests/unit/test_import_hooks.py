"""When the watcher calls back, and which parts of the import system it leaves unchanged."""

import importlib
import importlib.util
import inspect
import logging
import sys
import threading
import types
import zipfile

import pytest
import wrapt

from mlx_patches.activation import import_hook
from mlx_patches.activation.import_hook import Watcher, complete
from mlx_patches.core import imports

from .conftest import in_threads, load

# The own attribute of a watched module's loader, which also covers ``__main__``.
OURS = {"exec_module", "get_code"}


class Seen:
    def __init__(self):
        self.calls = []

    def __call__(self, module):
        names = {name for name in vars(module) if not name.startswith("__")}
        self.calls.append((module.__name__, complete(module), names))

    @property
    def names(self):
        return [name for name, _, _ in self.calls]


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def watcher(site, seen):
    made = Watcher(["pk"], seen)
    made.install()
    yield made
    made.uninstall()


def test_callback_after_module(site, seen, watcher):
    site.write("pk.py", "first = 1\nlast = 2\n")
    load("pk")
    load("pk")  # a second import is no import
    assert seen.calls == [("pk", True, {"first", "last"})]
    assert not imports.ended


def test_callback_order(site, seen, watcher):
    site.write("pk/__init__.py", "from . import inner\nimport pkx\n")
    site.write("pk/inner.py", "x = 1\n")
    site.write("pkx.py")
    load("pk")
    assert seen.names == ["pk.inner", "pk"]
    assert watcher.find_spec("pkx", None) is None


def test_no_callback_before_end(site, seen, watcher, monkeypatch):
    during = []
    site.write("pk.py", "import watched_state\nwatched_state.look()\nx = 1\n")
    state = type(sys)("watched_state")
    state.look = lambda: during.append((list(seen.names), complete(sys.modules["pk"])))
    monkeypatch.setitem(sys.modules, "watched_state", state)
    load("pk")
    assert during == [([], False)]
    assert seen.names == ["pk"]


def test_failing_callback_does_not_break_import(site, caplog):
    def angry(module):
        raise RuntimeError("angry callback")

    watcher = Watcher(["pk"], angry)
    watcher.install()
    site.write("pk.py", "x = 1\n")
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        module = load("pk")
    assert module.x == 1
    assert sys.modules["pk"] is module
    assert "after the import of pk" in caplog.text
    assert "angry callback" in caplog.text
    assert not imports.ended


def test_failing_import(site, seen, watcher):
    path = site.write("pk.py", "raise ImportError('as ever')\n")
    with pytest.raises(ImportError, match="as ever"):
        load("pk")
    assert "pk" not in sys.modules
    assert seen.names == []
    path.write_text("answer = 42  # mended\n")
    importlib.invalidate_caches()
    assert load("pk").answer == 42
    assert seen.names == ["pk"]


def test_loader_spec_and_source(site, seen):
    site.write("pk/__init__.py", "def f():\n    return 1\n")
    site.write("pk/data.txt", "text")
    plain = load("pk")
    facts = look(plain)
    site.forget()
    watcher = Watcher(["pk"], seen)
    watcher.install()
    watched = load("pk")
    assert watched is not plain
    assert look(watched) == facts
    assert type(watched.__spec__) is type(plain.__spec__)
    assert watched.__spec__.loader is watched.__loader__
    assert vars(watched.__loader__).keys() == vars(plain.__loader__).keys() | OURS


def look(module):
    return {
        "source": inspect.getsource(module.f),
        "loader": type(module.__loader__),
        "origin": module.__spec__.origin,
        "path": list(module.__path__),
        "file": module.__file__,
        "cached": module.__cached__,
        "code": module.__loader__.get_code("pk").co_names,
        "data": module.__loader__.get_data(module.__file__),
    }


def test_found_module_is_not_loaded(site, seen, watcher):
    site.write("pk.py")
    spec = importlib.util.find_spec("pk")
    assert spec is not None
    assert spec.loader.get_source("pk") == ""
    assert "pk" not in sys.modules
    assert seen.names == []


@pytest.fixture
def install_from_module(site, seen, monkeypatch):
    """``watched_state.install()`` for a module body; ``during`` has the names seen by then."""
    state = type(sys)("watched_state")
    state.watcher = Watcher(["pk"], seen)
    state.during = []

    def install():
        state.watcher.install()
        state.during.append(list(seen.names))

    state.install = install
    monkeypatch.setitem(sys.modules, "watched_state", state)
    return state


def test_half_imported_module(site, seen, install_from_module):
    site.write("pk.py", "import watched_state\nwatched_state.install()\nlast = 1\n")
    module = load("pk")
    assert install_from_module.during == [[]]
    assert seen.calls == [("pk", True, {"watched_state", "last"})]
    assert type(module.__spec__) is importlib.machinery.ModuleSpec
    assert "awaited" not in vars(module.__spec__)


def test_half_imported_parents(site, seen, install_from_module):
    site.write("pk/__init__.py", "from .inner import x\nlast = 1\n")
    site.write("pk/inner.py", "import watched_state\nwatched_state.install()\nx = 1\n")
    load("pk")
    assert seen.names == ["pk.inner", "pk"]
    assert seen.calls[-1][2] >= {"x", "last"}


def test_half_imported_module_fails(site, seen, install_from_module):
    site.write("pk.py", "import watched_state\nwatched_state.install()\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load("pk")
    assert seen.names == []


def test_half_imported_by_another_thread(site, seen):
    site.write("pk.py", "import threads_state as s\ns.begun.set()\ns.go_on.wait(10)\nx = 1\n")
    state = type(sys)("threads_state")
    state.begun, state.go_on = threading.Event(), threading.Event()
    sys.modules["threads_state"] = state
    try:
        importer = threading.Thread(target=load, args=("pk",))
        importer.start()
        assert state.begun.wait(10)
        Watcher(["pk"], seen).install()
        assert seen.names == []
        state.go_on.set()
        importer.join(10)
    finally:
        del sys.modules["threads_state"]
    assert [(name, done) for name, done, _ in seen.calls] == [("pk", True)]


def half_imported(monkeypatch):
    module = types.ModuleType("pk")
    module.__spec__ = importlib.machinery.ModuleSpec("pk", None)
    module.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "pk", module)
    return module


def at_step(step, function, act):
    """Call a function, with ``act`` before its line number ``step``; whether it has such a line."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == step:
                sys.settrace(None)
                act()
        return trace if frame.f_code is import_hook._when_complete.__code__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines >= step


@pytest.mark.parametrize("ends", [False, True], ids=["another awaits it", "and it ends"])
def test_half_imported_race(ends, caplog, monkeypatch):
    steps = 0
    while True:
        module, calls = half_imported(monkeypatch), []

        def other(module=module, calls=calls):
            import_hook._when_complete(module, lambda _: calls.append("other"))
            if ends:
                module.__spec__._initializing = False

        def await_it(module=module, calls=calls):
            import_hook._when_complete(module, lambda _: calls.append("first"))

        acted = at_step(steps + 1, await_it, other)
        module.__spec__._initializing = False
        if not acted:
            break
        steps += 1
        assert sorted(calls) == ["first", "other"], f"line {steps}"
        assert type(module.__spec__) is importlib.machinery.ModuleSpec
    assert steps > 4
    assert caplog.text == ""


def test_two_threads_one_callback(site, seen, watcher):
    site.write("pk.py", "import time\ntime.sleep(0.05)\nx = 1\n")
    barrier = threading.Barrier(2)
    found = []

    def importer():
        barrier.wait(10)
        found.append(load("pk").x)

    in_threads([importer] * 2)
    assert found == [1, 1]
    assert seen.names == ["pk"]


def test_import_waits_for_callback(site):
    """Another thread's import waits for the callback as well as for the module's own code."""
    site.write("pk.py", "patched = False\n")
    in_callback, too_early = threading.Event(), []

    def slow(module):
        in_callback.set()
        importlib.import_module("time").sleep(0.1)
        module.patched = True

    Watcher(["pk"], slow).install()

    def second():
        in_callback.wait(10)
        too_early.append(load("pk").patched)

    in_threads([lambda: load("pk"), second])
    assert too_early == [True]


def test_namespace_package(site, seen, watcher):
    (site.root / "pk").mkdir()
    (site.root / "pk" / "inner.py").write_text("x = 1\n")
    site.packages.add("pk")
    importlib.invalidate_caches()
    assert load("pk.inner").x == 1
    assert "pk.inner" in seen.names
    assert load("pk").__file__ is None


def test_zip(site, seen, watcher, monkeypatch):
    archive = site.root / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pk/__init__.py", "def f():\n    return 1\n")
        file.writestr("pk/inner.py", "x = 2\n")
    site.packages.add("pk")
    monkeypatch.syspath_prepend(archive)
    assert load("pk.inner").x == 2
    assert seen.names == ["pk", "pk.inner"]
    assert inspect.getsource(load("pk").f) == "def f():\n    return 1\n"
    assert type(load("pk").__loader__).__name__ == "zipimporter"


def test_uncopyable_loader(site, seen, watcher, caplog):
    class Loader:
        __slots__ = ()

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            module.x = 1

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "pk":
                return importlib.machinery.ModuleSpec("pk", Loader())

    sys.meta_path.append(Finder())
    site.packages.add("pk")
    assert load("pk").x == 1
    assert seen.names == []
    assert "cannot follow the import of pk" in caplog.text


@pytest.fixture
def wrapt_hooks():
    before = dict(wrapt.importer._post_import_hooks), wrapt.importer._post_import_hooks_init
    wrapt.importer._post_import_hooks_init = False
    yield
    wrapt.importer._post_import_hooks.clear()
    wrapt.importer._post_import_hooks.update(before[0])
    wrapt.importer._post_import_hooks_init = before[1]


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_wrapt_post_import_hooks(site, seen, wrapt_hooks, first):
    site.write("pk.py", "x = 1\n")
    theirs = []
    steps = [
        lambda: wrapt.register_post_import_hook(lambda m: theirs.append(m.__name__), "pk"),
        Watcher(["pk"], seen).install,
    ]
    for step in steps if first == "theirs" else reversed(steps):
        step()
    module = load("pk")
    assert theirs == ["pk"]
    assert set(seen.names) == {"pk"}
    assert type(module.__loader__) is importlib.machinery.SourceFileLoader
    assert module.__spec__.loader is module.__loader__


def test_other_finders(site, seen, watcher):
    searched = []

    class Spy:
        def find_spec(self, name, path=None, target=None):
            searched.append(name)

    sys.meta_path.insert(0, front := Spy())
    sys.meta_path.append(Spy())
    site.write("pk.py")
    load("pk")
    assert searched == ["pk"]  # by the spy in front; the path finder found it before the spy behind
    assert sys.meta_path[0] is front
    with pytest.raises(ModuleNotFoundError):
        load("pk_missing")
    assert searched == ["pk", "pk_missing", "pk_missing"]


def test_two_watchers(site, seen, watcher):
    other = Seen()
    Watcher(["pk"], other).install()
    site.write("pk.py")
    module = load("pk")
    assert seen.names == other.names == ["pk"]
    assert type(module.__loader__) is importlib.machinery.SourceFileLoader
    assert vars(module.__loader__).keys() == {"name", "path"} | OURS


def test_uninstall(site, seen, watcher):
    others = [finder for finder in sys.meta_path if finder is not watcher]
    watcher.uninstall()
    watcher.uninstall()
    assert sys.meta_path == others
    site.write("pk.py")
    load("pk")
    assert seen.names == []

    # The import system may still call a finder that has just been taken out.
    assert watcher.find_spec("pk", None) is None


def test_finders_are_stable_during_search(site):
    watcher = Watcher({"mlx_lm"}, lambda name: None)
    watcher.install()
    whole, looking = list(sys.meta_path), iter(sys.meta_path)
    assert next(looking) is watcher
    watcher.uninstall()
    assert watcher not in sys.meta_path
    assert [watcher, *looking] == whole
