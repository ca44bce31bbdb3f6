"""``mlx-patches ps``: which processes have patches in effect, and which files are trusted."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from click.testing import CliRunner

import mlx_patches
from mlx_patches import cli
from mlx_patches.activation import presence
from mlx_patches.activation import session as activation
from mlx_patches.activation.processes import processes

from .conftest import load, patch_of, session_for

CONTENT = {"version": "1", "releases": ["fake-lm 1.0"], "patches": ["one"], "withdrawn": {}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return presence.folder()


PROGRAM = """
import sys
from mlx_patches.activation import presence
mine = presence.Presence()
mine.write({content!r})
print("ready", flush=True)
sys.stdin.readline()
{end}
"""


def start(end=""):
    code = textwrap.dedent(PROGRAM).format(content=CONTENT, end=end)
    child = subprocess.Popen(
        [sys.executable, "-c", code, "--api-key", "secret"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


def test_process_is_listed_until_it_ends(folder):
    child = start()
    (found,) = processes()
    assert (found.pid, found.host, found.patches) == (child.pid, "-c", ("one",))
    assert "secret" not in (folder / f"{child.pid}.json").read_text()
    assert (folder.stat().st_mode & 0o777, len(list(folder.iterdir()))) == (0o700, 1)
    assert next(folder.iterdir()).stat().st_mode & 0o777 == 0o600
    child.communicate("go on\n")
    assert not list(folder.iterdir())


def test_process_is_listed_while_it_writes(folder):
    mine, seen = presence.Presence(), []
    mine.write({**CONTENT, "patches": ["one", "two"]})
    file = mine._file

    class Slow:
        def __getattr__(self, name):
            return getattr(file, name)

        def write(self, text):
            seen.extend(processes())
            return file.write(text)

    mine._file = Slow()
    mine.write(CONTENT)
    mine._file = file
    assert [one.patches for one in [*seen, *processes()]] == [("one", "two"), ("one",)]
    mine.forget()


def test_stale_file_is_removed(folder):
    child = start()
    child.kill()
    child.communicate()
    assert len(list(folder.iterdir())) == 1
    assert processes() == []
    assert not list(folder.iterdir())


def test_forked_child_does_not_keep_parent(folder):
    child = start("import os, time\nif os.fork(): os._exit(0)\ntime.sleep(3)")
    child.stdin.write("go on\n")
    child.stdin.close()
    child.wait()
    assert processes() == []


def test_threads_do_not_close_other_files(folder):
    """Nor write into a file that reuses a closed file's descriptor."""
    mine, stop, failed = presence.Presence(), threading.Event(), []

    def write_name():
        while not stop.is_set():
            mine.write(CONTENT)
            mine.forget()

    def read(path):
        while not stop.is_set():
            try:
                assert path.read_text() == "theirs"
                with open(path, "r+") as file:
                    file.write("theirs")
            except (OSError, AssertionError) as error:
                failed.append(error)

    files = [folder.parent / f"theirs-{number}" for number in range(3)]
    for file in files:
        file.write_text("theirs")
    threads = [threading.Thread(target=write_name) for _ in range(4)]
    threads += [threading.Thread(target=read, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("content", ["", "[]", "{}", "\x00", '{"pid": "x"}', json.dumps(CONTENT)])
def test_other_files_are_ignored(folder, content):
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.json").write_text(content)
    (folder / "strange.json").write_text(content)
    assert processes() == []


GOOD = {**CONTENT, "pid": 1, "host": "host"}
HOSTILE = {"host": "\x1b[31m\ud800\n", "releases": ["\x07"], "withdrawn": {"\x1b[1m": "\x9b2J"}}


@pytest.mark.parametrize(
    ("content", "listed"),
    [
        (json.dumps(GOOD), 1),
        (json.dumps({**GOOD, **HOSTILE}), 1),
        (json.dumps(GOOD).replace('"pid": 1', '"pid": 1e999'), 0),
        ("[" * 90_000, 0),
    ],
)
def test_process_text_is_escaped(folder, content, listed):
    folder.mkdir(mode=0o700)
    with open(folder / f"{os.getpid()}.json", "w+") as file:
        file.write(content)
        file.flush()
        assert presence.lock(file.fileno())
        assert len(processes()) == listed
        done = CliRunner().invoke(cli.cli, ["ps"])
    assert done.exception is None
    assert [c for c in done.output if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -mfoo --api-key hunter2", "-m foo"),
        ("python -um mlx_lm.server --api-key hunter2", "-m mlx_lm.server"),
        ("python -W ignore -X dev /srv/serve.py hunter2", "serve.py"),
        ("python -Wignore -Xdev serve.py", "serve.py"),
        ("python -c hunter2", "-c"),
        ("python -chunter2", "-c"),
        ("python - hunter2", "-"),
        ("python -- serve.py", "serve.py"),
        ("python", "python"),
    ],
)
def test_process_name_has_no_argument(monkeypatch, command, name):
    monkeypatch.setattr(sys, "orig_argv", command.split())
    assert presence.program_name() == name


def test_shared_folder_is_not_used(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    presence.Presence().write(CONTENT)
    assert not list(folder.iterdir())
    assert processes() == []


def test_linked_folder_is_not_used(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    presence.Presence().write(CONTENT)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_missing_disk_does_not_reach_host(folder, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/null/nowhere")
    presence.Presence().write(CONTENT)
    assert processes() == []


@pytest.fixture
def records(folder, fake, monkeypatch):
    written = []
    monkeypatch.setattr(presence.Presence, "write", lambda self, content: written.append(content))
    monkeypatch.setattr(presence.Presence, "forget", lambda self: written.append(None))
    return written


@pytest.mark.parametrize("is_off", [False, True])
def test_session_reports_patches(records, monkeypatch, is_off):
    if is_off:
        monkeypatch.setenv("MLX_PATCHES_PS", "0")
    monkeypatch.setattr(activation, "_session", session_for(patch_of("Cache.make", id="one")))
    mlx_patches.apply(["one"])
    assert records == []
    load("fake_lm.cache")
    mlx_patches.restore()
    assert [one and one["patches"] for one in records] == ([] if is_off else [["one"], None])


def test_ps(folder):
    runner = CliRunner()
    assert "no patched processes" in runner.invoke(cli.cli, ["ps"]).output
    child = start()
    try:
        output = runner.invoke(cli.cli, ["ps"]).output
        assert str(child.pid) in output
        assert "fake-lm 1.0" in output
        (row,) = json.loads(runner.invoke(cli.cli, ["ps", "--json"]).output)
        assert row["pid"] == child.pid
    finally:
        child.communicate("go on\n")
