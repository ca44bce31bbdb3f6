"""These tests download and take minutes: they run only with MLX_PATCHES_INSTALLS (`make hosts`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("MLX_PATCHES_INSTALLS"):
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="installs from registries: make hosts"))


def run(*command: str, **environment: str) -> str:
    """Run a command; returns its output, and fails with its error."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT.root
    )
    assert not done.returncode, f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="session", autouse=True)
def only_what_is_installed():
    """Keep the environments from importing this checkout."""
    os.environ.pop("PYTHONPATH", None)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> str:
    """The path of this package's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return str(built)
