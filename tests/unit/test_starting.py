"""A module started as ``__main__`` is patched like an imported one."""

import functools
import importlib.util
import logging
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mlx_patches
from mlx_patches.core import imports
from mlx_patches.core.outcome import Status

from .conftest import load, patch_of, session_for, target

SERVER = """
import sys

runs = [__name__]
counter = 0


class Handler:
    pass


def handle(x):
    return x


def main():
    print(handle(len(sys.argv)), Handler.__module__, counter, runs)


if __name__ == "__main__":
    counter = 7
    main()
"""
TARGET = target("handle", "fake_lm.server")


@pytest.fixture
def server(fake, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["server"])
    yield fake.write("fake_lm/server.py", SERVER)
    imports.as_main.clear()


@pytest.fixture
def session(server):
    made = session_for(patch_of(TARGET))
    made.apply(["fix"])
    yield made
    made.restore()


PATCHED = "('patched', 1) fake_lm.server 7 ['fake_lm.server']\n"


@pytest.mark.parametrize("alter_sys", (True, False))
def test_module_runs_once_and_patched(session, capsys, alter_sys):
    scope = runpy.run_module("fake_lm.server", run_name="__main__", alter_sys=alter_sys)
    assert capsys.readouterr().out == PATCHED
    assert scope["Handler"] is load("fake_lm.server").Handler
    assert (scope["__name__"], scope["__spec__"].name) == ("__main__", "fake_lm.server")
    assert [one.status for one in session.status()] == [Status.APPLIED]


def test_imported_module_is_not_run_again(session, capsys):
    """Python warns of it; releases import some of the modules that they let users start."""
    module = load("fake_lm.server")
    with pytest.warns(RuntimeWarning, match="found in sys.modules"):
        runpy.run_module("fake_lm.server", run_name="__main__")
    assert capsys.readouterr().out == PATCHED
    assert module.counter == 7


def test_module_run_by_its_loader(session):
    module = load("fake_lm.server")
    module.__spec__.loader.exec_module(module)
    assert module.handle(1) == ("patched", 1)


def test_spawned_worker_skips_guarded_code(session, capsys):
    """A worker that ``multiprocessing`` spawns runs its parent's main module in this way."""
    scope = runpy.run_module("fake_lm.server", run_name="__mp_main__", alter_sys=True)
    assert capsys.readouterr().out == ""
    assert scope["handle"](1) == ("patched", 1)


def test_error_shows_source_line(session, server):
    server.write_text(SERVER.replace("counter = 7", "1 / 0"))
    with pytest.raises(ZeroDivisionError) as raised:
        runpy.run_module("fake_lm.server", run_name="__main__")
    last = raised.traceback[-1]
    assert (str(last.path), str(last.statement).strip()) == (str(server), "1 / 0")


def test_module_without_guard(session, fake, capsys):
    fake.write("fake_lm/script.py", "print(__name__)\n")
    runpy.run_module("fake_lm.script", run_name="__main__")
    assert capsys.readouterr().out == "__main__\n"
    assert session.status().ok


UNREACHED = SERVER.replace('if __name__ == "__main__":', "if True:")


@pytest.mark.parametrize("alter_sys", (True, False))
def test_unpatched_copy_is_reported_once(session, server, capsys, caplog, alter_sys):
    server.write_text(UNREACHED)
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        runpy.run_module("fake_lm.server", run_name="__main__", alter_sys=alter_sys)
    assert capsys.readouterr().out.startswith("1 __main__ 7")
    (message,) = caplog.messages
    assert message.startswith("mlx_patches: fake_lm.server runs as __main__ in a copy of its code")
    assert message.endswith("; patches not in effect: 1")
    (one,) = session.status()
    assert (one.status, one.finding) == (Status.LOST, True)


def test_strict_unpatched_copy_does_not_start(server, capsys):
    server.write_text(UNREACHED)
    session = session_for(patch_of(TARGET))
    session.strict = True
    session.apply(["fix"])
    with pytest.raises(ImportError, match=r"fake_lm\.server runs as __main__"):
        runpy.run_module("fake_lm.server", run_name="__main__")
    assert capsys.readouterr().out == ""
    session.restore()


def test_copy_of_other_runner_is_not_ok(session, server, fake, monkeypatch, caplog):
    """Some tools compile the file: the next import detects it."""
    main = type(sys)("__main__")
    main.__spec__ = importlib.util.find_spec("fake_lm.server")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert not session.status().ok
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        load("fake_lm.cache")
        load("fake_lm.model")
    assert len(caplog.messages) == 1


def remove_hook(session):
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not session._watcher]


def test_import_without_hook_is_lost(session, caplog):
    remove_hook(session)
    module = load("fake_lm.server")
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        (one,) = session.status()
    assert (one.status, one.finding) == (Status.LOST, True)
    assert "without the import hook" in one.reason
    assert "was removed from sys.meta_path" in caplog.text
    assert session.active  # put back: later imports are followed
    assert not session.status().ok
    assert session.apply(["fix"]).ok
    assert module.handle(1) == ("patched", 1)
    assert session.status().ok


def test_restore_does_not_reinstall_hook(session):
    session.restore()
    session.status()
    assert not session.active


PROGRAM = f"""
import sys
sys.path[:0] = {sys.path!r}
from tests.unit.test_starting import TARGET
from tests.unit.conftest import patch_of, session_for
session = session_for(patch_of(TARGET))
session.apply(["fix"])
"""


POOL = """
import multiprocessing, pickle
if __name__ == "__main__":
    kept = pickle.dumps(Handler())
    assert type(pickle.loads(kept)) is Handler is __import__("__main__").Handler
    with multiprocessing.get_context("METHOD").Pool(1) as pool:
        print(pool.map(handle, [5]))
"""


@pytest.mark.parametrize("method", ("", "spawn", "forkserver"))
def test_python_m_and_workers(server, method):
    if method:
        source = SERVER.partition("if __name__")[0]
        server.write_text(source + POOL.replace("METHOD", method))
    (server.parent.parent / "sitecustomize.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "fake_lm.server"],
        env={"PYTHONPATH": str(server.parent.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    expected = "[('patched', 5)]\n" if method else PATCHED
    assert (done.stdout, done.stderr) == (expected, "")


def test_zip(tmp_path):
    archive = tmp_path / "packed.zip"
    root = Path(mlx_patches.__file__).parents[1]
    with zipfile.ZipFile(archive, "w") as file:
        for path in (root / "mlx_patches").rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                file.write(path, path.relative_to(root))
    code = "import mlx_patches as m, sys; print(len(m.apply()), m.status().ok, m.__file__)"
    env = {"PYTHONPATH": str(archive)}
    run = functools.partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path)
    done = run([sys.executable, "-c", code], env=env)
    plain = run([sys.executable, "-c", code], env={"PYTHONPATH": str(root)})
    assert done.stderr == plain.stderr
    assert done.stdout.split()[:2] == plain.stdout.split()[:2]
    assert done.stdout.split()[2].startswith(str(archive))
