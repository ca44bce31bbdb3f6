"""mlx_patches in a host's environment of uv or pipx."""

import sys

import pytest

from .conftest import UV, run

HOST = "mlx-lm==0.32.2"
MLX = "mlx[cpu]" if sys.platform == "linux" else "mlx"
SERVER = "mlx_lm.server"
# Prints, when a process of the environment ends, which patches were in effect.
WITNESS = """
def _say():
    import sys
    ours = sys.modules.get("mlx_patches")
    found = {o.patch for o in ours.status() if str(o.status) == "applied"} if ours else ()
    print("applied:", *sorted(found))
import atexit; atexit.register(_say)
"""
PLACE = (
    "import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'witness.pth')"
    ".write_text(f'import sys; exec({sys.argv[1]!r})\\n')"
)


def list_applied(*command, **environment):
    """The patches that were in effect in a host's process that shows its help and ends."""
    output = run(*command, "--help", **environment)
    assert "--model" in output
    return output.rpartition("applied:")[2].split()


@pytest.fixture
def folders(tmp_path):
    """Folders for the tools of uv and pipx, apart from the user's own."""
    names = ("UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR")
    return {name: str(tmp_path / name.lower()) for name in names} | {"MLX_PATCHES": ""}


def check(python, server, ours, folders):
    """Enable and disable the patches next to a host, then start it with them once."""
    run(python, "-c", PLACE, WITNESS)
    assert list_applied(server, **folders) == []
    run(ours, "enable", **folders)
    assert list_applied(server, **folders)
    run(ours, "disable", **folders)
    assert list_applied(server, **folders) == []
    assert list_applied(ours, "run", "--", server, **folders)


def test_uv_tool_install_with(wheel, folders):
    with_ = ("--with", MLX, "--with", wheel, "--with-executables-from", "mlx-patches")
    run(*UV, "tool", "install", "--quiet", "--python", sys.executable, HOST, *with_, **folders)
    python = f"{folders['UV_TOOL_DIR']}/mlx-lm/bin/python"
    server, ours = (f"{folders['UV_TOOL_BIN_DIR']}/{name}" for name in (SERVER, "mlx-patches"))
    check(python, server, ours, folders)


def test_pipx_inject(wheel, folders):
    pipx = (*UV, "tool", "run", "--quiet", "pipx")
    run(*pipx, "install", "--quiet", "--python", sys.executable, HOST, **folders)
    run(*pipx, "inject", "--quiet", "mlx-lm", MLX, **folders)
    run(*pipx, "inject", "--quiet", "--include-apps", "mlx-lm", wheel, **folders)
    python = f"{folders['PIPX_HOME']}/venvs/mlx-lm/bin/python"
    server, ours = (f"{folders['PIPX_BIN_DIR']}/{name}" for name in (SERVER, "mlx-patches"))
    check(python, server, ours, folders)


def test_uvx_with(wheel, folders):
    uvx = (*UV, "tool", "run", "--quiet", "--python", sys.executable, "--from", HOST)
    uvx += ("--with", MLX, "--with", wheel)
    run(*uvx, "python", "-c", PLACE, WITNESS, **folders)
    assert list_applied(*uvx, SERVER, **folders) == []
    assert list_applied(*uvx, "mlx-patches", "run", "--", SERVER, **folders)
