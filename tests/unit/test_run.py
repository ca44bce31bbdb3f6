import os
import sys
from pathlib import Path

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.activation import run

from .conftest import make_environment, run_command

ROOT = Path(__file__).parents[2]
ACTIVE = "import mlx_patches.activation.boot as boot; print(boot.active())"


def script(path: Path, first: str, body: str = ACTIVE) -> Path:
    path.write_text(f"{first}\n{body}\n")
    path.chmod(0o755)
    return path


def output(command, **environment):
    launch = run.launch([str(word) for word in command])
    done = run_command(launch.command, **{**launch.variables, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_command_beside_interpreter(tmp_path, monkeypatch):
    host = script(tmp_path / "only-here", f"#!{sys.executable}")
    with pytest.raises(MlxPatchesError, match="no such command on PATH"):
        run.launch(["only-here"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert run.launch(["only-here"]).command == (str(host),)


def test_start_line_names_profile(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "execvpe", lambda *arguments: None)
    run.execute(run.launch([sys.executable, "-c", "1"], "batch"))
    assert capsys.readouterr().err == "mlx-patches: patches of profile batch are active\n"


def test_interpreter_of_a_script(tmp_path):
    assert output([script(tmp_path / "host", f"#!{sys.executable}")]) == ["True"]
    host = script(tmp_path / "host", f"#!{sys.executable}", "import sys; print(*sys.argv[1:])")
    assert output([host, "serve", "--port", "1"]) == ["serve", "--port", "1"]
    shell = f"'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n{ACTIVE}"
    assert output([script(tmp_path / "host", "#!/bin/sh", shell)]) == ["True"]


def test_interpreter_beside_script(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    python = script(folder / "python", "#!/bin/sh", f'exec "{sys.executable}" "$@"')
    beside = '"$(dirname -- "$(realpath -- "$0")")"/\'python\''
    shell = f"'''exec' {beside} \"$0\" \"$@\"\n' '''\n{ACTIVE}"
    host = script(folder / "host", "#!/bin/sh", shell)
    link = tmp_path / "link"
    link.symlink_to(host)
    assert run.interpreter_of(host) == run.interpreter_of(link) == [str(python)]
    assert output([host]) == output([link]) == ["True"]


def test_relative_interpreter(tmp_path, monkeypatch):
    """``.venv/bin/python`` is a link: the environment is the folder of the link, not its target."""
    environment = tmp_path / ".venv"
    _, site = make_environment(environment)
    (site / "here.pth").write_text(f"{ROOT}\n")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    code = f"import sys; print(sys.prefix); {ACTIVE}"
    assert output([".venv/bin/python", "-c", code]) == [str(environment), "True"]
    host = script(tmp_path / "host", "#!.venv/bin/python", code)
    assert output([host]) == [str(environment), "True"]


@pytest.mark.parametrize("method", ("spawn", "forkserver", "fork"))
def test_child_processes(tmp_path, method):
    body = f"""
import multiprocessing
def work():
    {ACTIVE}
if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=work)
    child.start(); child.join()
"""
    assert output([script(tmp_path / "host.py", f"#!{sys.executable}", body)]) == ["True"]


def test_other_sitecustomize_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    host = script(tmp_path / "host", f"#!{sys.executable}", ACTIVE)
    launch = run.launch([str(host)])
    paths = f"{launch.variables['PYTHONPATH']}{os.pathsep}{tmp_path}"
    assert output([host], PYTHONPATH=paths) == ["theirs", "True"]


@pytest.mark.parametrize("option", ("-E", "-I", "-sE"))
def test_isolated_script(tmp_path, option):
    host = script(tmp_path / "host", f"#!{sys.executable} {option}")
    launch = run.launch([str(host)])
    assert option in launch.warning
    assert output([host, "x"]) == ["True"]


@pytest.mark.parametrize("option", ("-I", "-E", "-S"))
def test_isolated_interpreter_is_refused(option):
    with pytest.raises(MlxPatchesError, match="ignores"):
        run.launch([sys.executable, option, "-m", "host"])


def test_other_program_passes_patches_on(tmp_path):
    tool = script(tmp_path / "tool", "#!/bin/sh", f'"{sys.executable}" -c "{ACTIVE}"')
    assert "tool is not a Python program" in run.launch([str(tool)]).warning
    assert output([tool]) == ["True"]
    # An interpreter line with an unclosed quote does not count as Python.
    quote = script(tmp_path / "quote", "#!/usr/bin/env 'python")
    assert "is not a Python program" in run.launch([str(quote)]).warning


def test_system_refusal(tmp_path):
    # The zero byte marks it as a binary.
    tool = script(tmp_path / "tool", "\0")
    with pytest.raises(MlxPatchesError, match=r"tool: cannot be started \("):
        run.execute(run.Launch((str(tool),), {}))


def test_unstartable_command_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may have mlx_patches for other Pythons
    with pytest.raises(MlxPatchesError, match="no such command"):
        run.launch(["no-such-command-here"])
    with pytest.raises(MlxPatchesError, match="cannot be started: not a program"):
        run.launch([str(script(tmp_path / "notes", "three words here"))])
    with pytest.raises(MlxPatchesError, match="its interpreter /gone/sh does not exist"):
        run.launch([str(script(tmp_path / "tool", "#!/gone/sh", "echo"))])
    with pytest.raises(MlxPatchesError, match=r"gone/python: cannot be started \(No such file"):
        run.launch([str(script(tmp_path / "orphan", f"#!{tmp_path / 'gone' / 'python'}"))])
    python, _ = make_environment(tmp_path / "env")
    host = script(tmp_path / "host", f"#!{python}")
    code = "mlx-patches is not installed in that command's environment"
    with pytest.raises(MlxPatchesError, match=code):
        run.launch([str(host)])
