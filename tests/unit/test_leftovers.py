"""A measuring command leaves no process and no file, whatever ends it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mlx_patches.lab import Family, children, runner
from mlx_patches.lab.runner import Task

# Starts a server, leaves a file and prints the server's process id.
LAB = """
import subprocess, sys, tempfile, time
tempfile.mkdtemp()
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
print(server.pid, flush=True)
{then}
"""
# A command that runs such a process and prints the process ids.
PARENT = """
import sys
from mlx_patches.lab import children
with children.start([sys.executable, "-c", {lab!r}], stdout=-1, text=True) as child:
    print(child.process.stdout.readline(), flush=True)
    child.process.wait()
"""
WAIT = "time.sleep(99)"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def is_running(number):
    try:
        os.kill(number, 0)
        return b"Z" not in Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2][:3]
    except OSError:
        return False


def leftovers(folder):
    found = [one for one in folder.glob("mlx_patches-kernels-*/*/*") if one.name != "lock"]
    return found + [one for one in folder.iterdir() if "kernels" not in one.name]


def check(folder, *numbers):
    end = time.monotonic() + 20
    while any(map(is_running, numbers)) or leftovers(folder):
        assert time.monotonic() < end, (numbers, leftovers(folder))
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_parent_that_gets_a_signal(temporary, number):
    code = PARENT.format(lab=LAB.format(then=WAIT))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        server = int(parent.stdout.readline())
        assert is_running(server) and leftovers(temporary)
        parent.send_signal(number)
        assert parent.wait(20)
    check(temporary, server)


@pytest.mark.parametrize(
    ("then", "code"), [(WAIT, None), ("raise SystemExit(3)", 3), ("sys.exit()", 0)]
)
def test_command_that_ends_or_times_out(temporary, then, code):
    done = children.run([sys.executable, "-c", LAB.format(then=then)], 3)
    assert done.code == code
    check(temporary, int(done.out))


def test_signal_of_command():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert children.run([sys.executable, "-c", code], 20).code == -signal.SIGSEGV


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_import_of_a_hanging_mlx(temporary, tmp_path_factory, number):
    """It ends with the time limit, or at once with an interrupt, whatever ends the audit."""
    folder = tmp_path_factory.mktemp("fake")
    (folder / "mlx").mkdir()
    pid = folder / "pid"
    hang = f"import os, time; print(os.getpid(), file=open({str(pid)!r}, 'w')); time.sleep(60)"
    (folder / "mlx" / "core.py").write_text(hang)
    code = "from mlx_patches.auditing import preflight as p; p.IMPORT_SECONDS = {}; p._import_mlx()"
    seconds = 30 if number == signal.SIGINT else 1
    with subprocess.Popen(
        [sys.executable, "-c", code.format(seconds)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        stderr=subprocess.DEVNULL,
    ) as parent:
        end = time.monotonic() + 20
        while not (pid.exists() and pid.read_text().endswith("\n")):
            assert time.monotonic() < end
        if number is not None:
            parent.send_signal(number)
        assert parent.wait(20)
    check(temporary, int(pid.read_text()))


def test_interrupted_lab_ends_every_family(temporary, monkeypatch):
    command = [sys.executable, "-c", LAB.format(then=WAIT)]
    monkeypatch.setattr(Task, "command", lambda self: command)
    monkeypatch.setattr(runner, "as_completed", lambda futures: wait_for_files(temporary, 2))
    tasks = [Task(Family("mlx-lm", name), False, ("trim",)) for name in ("a", "b", "c")]
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run(tasks, jobs=2)
    assert time.monotonic() - begun < 20
    check(temporary)


def test_interrupted_lab_ends_a_family_that_starts_later(temporary, monkeypatch):
    interrupted = threading.Event()

    def start_later(task):
        interrupted.wait()
        time.sleep(0.5)
        return [sys.executable, "-c", LAB.format(then=WAIT)]

    def interrupt(futures):
        interrupted.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "command", start_later)
    monkeypatch.setattr(runner, "as_completed", interrupt)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run([Task(Family("mlx-lm", "a"), False, ("trim",))], seconds=25)
    assert time.monotonic() - begun < 20
    check(temporary)


def wait_for_files(folder, count):
    while len(leftovers(folder)) < count:
        time.sleep(0.05)
    raise KeyboardInterrupt


def test_temporary_folder(temporary):
    with children.temporary_folder() as folder:
        (folder / "model").mkdir()
        assert leftovers(temporary)
    check(temporary)


def test_folder_left_by_a_lost_supervisor_is_cleaned(temporary):
    with children.temporary_folder() as folder:
        kernels = folder / "mlx"
        kernels.mkdir()
    (folder / "model").mkdir()
    with children.temporary_folder() as again:
        assert again == folder
        assert [one.name for one in again.iterdir() if one.name != "lock"] == ["mlx"]
