"""Fake distributions, and the matrix, registry and manager around them."""

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

# Its import replaces a finder in sys.meta_path, so it comes before fixtures that restore
# sys.meta_path.
import importlib_metadata  # noqa: F401
import pytest
from hypothesis import settings

from mlx_patches import cli
from mlx_patches.activation import session
from mlx_patches.activation.session import Session
from mlx_patches.core import distributions
from mlx_patches.core.handed import MANAGERS
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import Patch, Target, around
from mlx_patches.core.registry import Registry
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix

settings.register_profile("unit", derandomize=True, deadline=None, database=None)
settings.load_profile("unit")

CACHE = """
class Cache:
    def __init__(self):
        self.offset = 0

    def update(self, n):
        self.offset += n
        return self.offset

    @property
    def state(self):
        return [self.offset]

    @state.setter
    def state(self, value):
        self.offset = value[0]

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def twice(n):
        return 2 * n


class Other:
    def update(self, n):
        return -n


def attend(x):
    return x + 1
"""
MODEL = """
from .cache import Cache, attend


class Model:
    def __call__(self, x):
        return attend(x)
"""


class Site:
    """A folder on ``sys.path`` in which fake distributions get installed."""

    def __init__(self, root: Path):
        self.root = root
        self.packages: set[str] = set()

    def install(
        self,
        name: str,
        version: str = "1.0",
        files: dict[str, str] | None = None,
        direct_url: dict[str, Any] | str | None = None,
        metadata: str | None = None,
    ) -> Path:
        """Write a distribution; ``metadata=""`` leaves METADATA out. Returns its dist-info."""
        for file, source in (files or {}).items():
            self._write(file, source)
        info = self.root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        if metadata is None:
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if metadata:
            (info / "METADATA").write_text(metadata)
        if direct_url is not None:
            text = direct_url if isinstance(direct_url, str) else json.dumps(direct_url)
            (info / "direct_url.json").write_text(text)
        importlib.invalidate_caches()
        return info

    def write(self, file: str, source: str = "") -> Path:
        """Write a module; folders on the way get an ``__init__.py``."""
        path = self._write(file, source)
        importlib.invalidate_caches()
        return path

    def _write(self, file: str, source: str) -> Path:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(self.root).parents:
            if str(folder) != "." and not (self.root / folder / "__init__.py").exists():
                (self.root / folder / "__init__.py").write_text("")
        path.write_text(dedent(source))
        self.packages.add(file.partition("/")[0].removesuffix(".py"))
        return path

    def forget(self) -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] in self.packages:
                del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty ``Site``; a test's changes to the import system are undone after it."""
    meta_path, path_hooks = list(sys.meta_path), list(sys.path_hooks)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(session, "_session", None)
    MANAGERS.clear()  # a strict manager of a former test may still be alive
    made = Site(tmp_path)
    yield made
    made.forget()
    sys.meta_path[:] = meta_path
    sys.path_hooks[:] = path_hooks
    for path in list(sys.path_importer_cache):
        if path.startswith(str(tmp_path)):
            del sys.path_importer_cache[path]
    importlib.invalidate_caches()


@pytest.fixture
def fake(site: Site) -> Site:
    """A site with the distribution ``fake-lm`` 1.0, package ``fake_lm``."""
    site.install("fake-lm", files={"fake_lm/cache.py": CACHE, "fake_lm/model.py": MODEL})
    return site


@pytest.fixture
def cache(fake: Site) -> ModuleType:
    return load("fake_lm.cache")


@pytest.fixture
def invoke(monkeypatch, capsys):
    """Runs a command line in this process; returns its exit code and its output."""

    def run(*arguments):
        monkeypatch.setattr(distributions, "_packages", {})
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        out, err = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err)

    return run


@pytest.fixture
def affected(fake, monkeypatch):
    """A session with one patch, which the fake distribution needs."""
    monkeypatch.setattr(session, "_session", session_for(patch_of("attend"), always=["fix"]))


@pytest.fixture
def llama(site):
    """The folder of a model, and mlx-lm as installed, without code."""
    site.install("mlx", "0.32.4")
    site.install("mlx-lm", "0.32.2")
    for module in ("models/cache", "models/llama", "generate"):
        site.write(f"mlx_lm/{module}.py")
    folder = site.root / "a model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": 1}')
    return folder


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def document(**changes: Any) -> dict[str, Any]:
    """A matrix document; keyword arguments replace its keys."""
    plain: dict[str, Any] = {
        "schema": 1,
        "releases": {},
        "always": [],
        "patches": {},
        "models": {"default": {}},
        "broken_sets": [],
    }
    return plain | changes


def matrix_for(*patches: Patch, rule: dict[str, Any] | None = None, **changes: Any) -> CompatMatrix:
    """A matrix in which each patch has this rule in all of its distributions."""
    rule = rule or {"affected": ">=0"}
    rules = {p.id: {t.distribution: rule for t in p.targets} for p in patches}
    return CompatMatrix(document(**{"patches": rules, **changes}))


def registry_of(*patches: Patch) -> Registry:
    registry = Registry()
    for patch in patches:
        registry.add(patch)
    return registry


def manager_for(*patches: Patch, rule: dict[str, Any] | None = None) -> Manager:
    """A new manager; without a ``rule`` it treats every release as affected."""
    return Manager(Gate(matrix_for(*patches, rule=rule)))


def apply_all(*targets: Target | str, strict: bool = False, **more: Any) -> tuple[Manager, Patch]:
    """A manager with a patch of these targets in effect, and the patch."""
    patch = patch_of(*targets, **more)
    manager = Manager(Gate(matrix_for(patch)), strict=strict)
    assert set(statuses(manager.apply(patch))) == {"applied"}
    return manager, patch


def apply_patches(*patches: Patch) -> Manager:
    """A manager with these patches in effect, one on top of the other."""
    manager = manager_for(*patches)
    for patch in patches:
        assert set(statuses(manager.apply(patch))) == {"applied"}
    return manager


def session_for(*patches: Patch, **changes: Any) -> Session:
    return Session(registry_of(*patches), matrix_for(*patches, **changes))


def mark_result(original: Any, *args: Any, **kwargs: Any) -> Any:
    return ("patched", original(*args, **kwargs))


def target(name: str, module: str = "fake_lm.cache", factory: Any = None, **more: Any) -> Target:
    """A target of ``fake-lm``; its factory wraps with ``marked`` by default."""
    more.setdefault("distribution", "fake-lm")
    return Target(module=module, name=name, factory=factory or around(mark_result), **more)


def patch_of(*targets: Target | str, id: str = "fix", **more: Any) -> Patch:
    made = tuple(target(one) if isinstance(one, str) else one for one in targets)
    return Patch(id, "goes wrong", made, probe="none:none", module=__name__, **more)


def in_threads(functions: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def run_code(code: str, path: object = "", **environment: str) -> tuple[list[str], str]:
    """The printed lines and the errors of a program in a new process."""
    variables = {"PYTHONPATH": str(path), **environment}
    done = run_command([sys.executable, "-c", dedent(code)], **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def run_command(
    command: Sequence[object], cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with additional environment variables."""
    env = {**os.environ, **variables}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def make_environment(folder: Path) -> tuple[Path, Path]:
    """The Python and the site-packages of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    return folder / "bin" / "python", site


def letters(pairs: dict[str, dict[str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """The parts of evidence, from the letters of each cell without and with the patches."""
    return {
        part: {
            family: {name: pair[place] for name, pair in cells.items() if pair[place:]}
            for family, cells in pairs.items()
        }
        for place, part in enumerate(("without", "with"))
    }


def statuses(outcomes: Any) -> list[str]:
    return [str(outcome.status) for outcome in outcomes]
