"""Commands import nothing from the working directory, which may be the folder of a model."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_patches
from mlx_patches import cli
from mlx_patches.lab.walks.runner import WALKS

from .conftest import run_command

ROOT = Path(mlx_patches.__file__).parent
ONE = ("--scenario", "equal-lengths")
SAFE, PLAIN = ([sys.executable, *option, "-m", "mlx_patches"] for option in (["-P"], []))
# Command to its command lines; a command that would change the environment only prints its help.
COMMANDS = {
    "audit": [(), ("--model", "."), ("--model", ".", "--measure")],
    "completion": [("fish",)],
    "disable": [("--help",)],
    "enable": [("--help",)],
    "explain": [("offset-alias",)],
    "lab": [
        ("--model", "llama", *ONE),
        ("--config", ".", *ONE),
        ("--weights", ".", *ONE),
        ("--model", "llama", "--scenario", WALKS, "--walks", "1"),
        ("--model", "llama", "--device", "metal-emulated", *ONE),
        ("--model", "llama", "--reference"),
    ],
    "list": [()],
    "probe": [("offset-alias",), ("llama",)],
    "ps": [()],
    "recommend": [("--model", "llama")],
    "report": [("--model", ".")],
    "run": [("--", sys.executable, "-c", "pass"), ("--", "./isolated")],
}
LINES = [(name, *line) for name, lines in COMMANDS.items() for line in lines]
MEASURING = [("audit", "--model", ".", "--measure"), ("lab", "--config", ".", *ONE)]
RELEASE = ("mlx", "mlx_lm", "mlx_vlm", "numpy", "sitecustomize", "usercustomize", "transformers")
INSTALLED = filter(str.isidentifier, importlib.metadata.packages_distributions())
EVERY = {*RELEASE, *sys.stdlib_module_names, *INSTALLED}
MLX = """
try: import numpy
except ImportError: pass
cpu = gpu = default_device = lambda: cpu
"""
LLAMA = """
class Model: ...
class ModelArgs: ...
"""


class Folder:
    def __init__(self, root: Path, planted: set[str]):
        self.path, self.environment, self.mark = root / "m", root / "environment", root / "mark"
        for name in planted:
            file = self.path / name / "__init__.py" if name in RELEASE else self.path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"with open({str(self.mark)!r}, 'a') as f: f.write('{name} ')\n")
        (self.path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        isolated = self.path / "isolated"
        isolated.write_text(f"#!{sys.executable} -E\n")
        isolated.chmod(0o755)
        for package, version in (("mlx", "0.31.2"), ("mlx_lm", "0.32.2")):
            info = self.environment / f"{package}-{version}.dist-info"
            info.mkdir(parents=True)
            name = package.replace("_", "-")
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
        modules = {"mlx/core": MLX, "mlx_lm/models/llama": LLAMA, "mlx_lm/models/cache": ""}
        modules |= {"mlx_lm/__init__": "", "mlx_lm/models/__init__": ""}
        for file, text in modules.items():
            module = self.environment / f"{file}.py"
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(text)

    def run(self, *command: str, more: str = "") -> tuple[set[str], subprocess.CompletedProcess]:
        """The planted modules that a command line in the folder imports, and its result."""
        paths = [str(self.environment), str(ROOT.parent), *filter(None, [more])]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "HOME": str(self.environment)}
        done = run_command(command, cwd=self.path, **variables)
        seen = self.mark.read_text().split() if self.mark.exists() else []
        self.mark.unlink(missing_ok=True)
        return {*seen}, done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("every"), EVERY)


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("releases"), {*RELEASE})


def test_every_command_has_a_command_line():
    assert set(COMMANDS) == set(cli.cli.commands)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=" ".join(line), marks=[pytest.mark.slow] if number % 3 else [])
        for number, line in enumerate(LINES)
    ],
)
def test_command_ignores_working_directory(folder, line):
    seen, done = folder.run(*SAFE, *line)
    # From Python 3.13 on, `python -c` itself imports modules from the working directory.
    own = folder.run(*line[2:])[0] if line[0] == "run" else set()
    assert seen == own
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("line", MEASURING, ids=" ".join)
def test_python_m_reports_environment(releases, line):
    seen, done = releases.run(*PLAIN, *line)
    _, other = releases.run(*SAFE, *line)
    assert seen == set()
    assert (done.returncode, done.stdout) == (other.returncode, other.stdout)
    # Two processes measure at a time, so order and time of their steps vary.
    assert steps_of(done.stderr) == steps_of(other.stderr)


def steps_of(errors: str) -> list[str]:
    """The lines of an output, without the numbers and times of finished steps."""
    return sorted(
        re.sub(r"^\[\d+/\d+\] (.*): \d+ s, .*$", r"\1", one) for one in errors.splitlines()
    )


@pytest.mark.parametrize("entry", [".", ":"])
def test_pythonpath_may_name_working_directory(releases, entry):
    seen, _ = releases.run(*SAFE, "lab", "--model", "llama", *ONE, more=entry)
    assert "mlx" in seen


def test_no_process_has_working_directory_on_path():
    starting = re.compile(r'(sys\.executable|python), "-[cm]"')
    files = [str(f.relative_to(ROOT)) for f in ROOT.rglob("*.py") if starting.search(f.read_text())]
    assert files == []
