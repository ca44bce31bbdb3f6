import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mlx_patches
from mlx_patches import MlxPatchesError
from mlx_patches.activation import run, settings, started
from mlx_patches.activation import session as activation

from .conftest import CACHE, load, patch_of, session_for, statuses, target

ROOT = Path(__file__).parents[2]
PATCHES = '''
"""Patches of another package, for a stand-in of mlx-lm."""
import os
from mlx_patches.plugin import Contribution, Patch, Target, around

def wrapper(original, x):
    if os.environ.get("FAULT") == "call":
        raise ValueError("in a call")
    return ("patched", original(x))

def factory(original):
    if os.environ.get("FAULT") == "apply":
        raise ValueError("at apply")
    return around(wrapper)(original)

ONE = Contribution(
    Patch("their-patch", "goes wrong",
          (Target("mlx-lm", "mlx_lm.models.cache", "attend", factory),), "none:none", __name__),
    {"mlx-lm": ">=0"},
)
'''
USE = "import mlx_lm.models.cache as cache; print(cache.attend(1))"
TWICE = """
try:
    import mlx_lm.models.cache
except BaseException as error:
    print(type(error).__name__)
import mlx_lm.models.cache as cache
print(cache.attend(1))
"""
ENTRY = "from importlib.metadata import entry_points; "
OUR_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
# Each way to activate the patches, and the code that it runs before the host's own code.
MODES = {
    "apply": "import mlx_patches; mlx_patches.apply()",
    "apply, late": "import mlx_lm; import mlx_patches; mlx_patches.apply()",
    "auto": "import mlx_patches.auto",
    "enabled": "import mlx_patches.activation.boot as boot; boot.start()",
    "run": "",
    "vLLM's plugins": f"{ENTRY}entry_points(group='vllm.general_plugins')['mlx_patches'].load()()",
    "wrapt's discovery": "import wrapt; wrapt.discover_post_import_hooks('mlx_patches')",
}


@pytest.fixture
def host(site):
    site.install("mlx", "0.31.2")
    site.install("mlx-lm", "0.31.3", {"mlx_lm/models/cache.py": "def attend(x): return x + 1\n"})
    site.write("their_patches.py", PATCHES)
    points = {**OUR_POINTS, "mlx_patches.patches": {"one": "their_patches:ONE"}}
    (site.install("their-package") / "entry_points.txt").write_text(
        "\n".join(
            line
            for group, entries in points.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
        )
    )

    def start(mode, code=USE, **variables):
        command, extra = [sys.executable, "-c", f"{MODES[mode]}\n{code}"], {}
        if mode == "run":
            launch = run.launch(command)
            command, extra = launch.command, launch.variables
        paths = [extra.get("PYTHONPATH"), str(site.root), os.environ.get("PYTHONPATH")]
        extra = {**variables, **extra, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True)

    return start


every_mode = pytest.mark.parametrize("mode", MODES)


@every_mode
def test_on_by_default(host, mode):
    done = host(mode)
    assert done.stdout == "('patched', 2)\n", done.stderr
    assert done.stderr == ""


@every_mode
@pytest.mark.parametrize("value", ["0", "Off"])
def test_switched_off(host, mode, value):
    asked_for = mode in {"apply", "apply, late", "run"}
    done = host(mode, MLX_PATCHES=value)
    assert done.stdout == ("('patched', 2)\n" if asked_for else "2\n"), done.stderr
    assert done.stderr == ""


@every_mode
def test_disabled_and_unknown_id_are_reported(host, mode):
    done = host(mode, MLX_PATCHES_DISABLE="their-patch,their-ptch")
    assert done.stdout == "2\n", done.stderr
    assert done.stderr == (
        "mlx_patches: MLX_PATCHES_DISABLE names 'their-ptch', which is neither a patch nor a"
        " distribution that contributes one; did you mean 'their-patch'?\n"
    )


@every_mode
@pytest.mark.parametrize("fault", ["apply", "call"])
def test_fault_does_not_reach_host(host, mode, fault):
    done = host(mode, FAULT=fault)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert done.stderr.count("mlx_patches: their-patch") == 1
    assert f"ValueError: {'at apply' if fault == 'apply' else 'in a call'}" in done.stderr


@every_mode
@pytest.mark.parametrize("fault", ["apply", "call"])
def test_strict_fault_reaches_host(host, mode, fault):
    done = host(mode, FAULT=fault, MLX_PATCHES_STRICT="1")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    message_of = {
        "apply": "their-patch is not in effect: mlx_lm.models.cache:attend: failed: rolled back:"
        " ValueError: at apply",
        "call": "ValueError: in a call\nraised by the patch their-patch of mlx_patches in "
        "mlx_lm.models.cache:attend",
    }
    assert message_of[fault] in done.stderr


@pytest.mark.parametrize("mode", ["apply", "enabled", "run"])
def test_strict_second_import_fails(host, mode):
    done = host(mode, TWICE, FAULT="apply", MLX_PATCHES_STRICT="1")
    assert (done.returncode, done.stdout) == (1, "MlxPatchesError\n"), done.stderr


@pytest.mark.parametrize("mode", ["enabled", "run"])
def test_broken_installation(host, mode, tmp_path):
    """With STRICT the host does not start; without, it runs, with one warning for all imports."""
    broken = f"""
import pathlib, mlx_patches.matrix.matrix as matrix
matrix.COMPILED = pathlib.Path({str(tmp_path / "none.json")!r})
"""
    done = host(mode, broken + USE)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert done.stderr.count("mlx_patches is not active") == 1
    strict = host(mode, broken + TWICE, MLX_PATCHES_STRICT="1")
    assert (strict.returncode, strict.stdout) == (1, "MlxPatchesError\n"), strict.stderr
    assert "none.json: FileNotFoundError" in strict.stderr


@pytest.mark.parametrize(
    ("value", "strict"),
    [("", False), ("0", False), ("No", False), ("off", False), ("1", True), ("true", True)],
)
def test_strict_values(monkeypatch, value, strict):
    monkeypatch.setenv("MLX_PATCHES_STRICT", value)
    assert settings.strict() is strict
    monkeypatch.delenv("MLX_PATCHES_STRICT")
    assert not settings.strict()


@pytest.fixture
def make_session(fake, monkeypatch):
    def make(*patches, disable="", strict=""):
        monkeypatch.setenv("MLX_PATCHES_DISABLE", disable)
        monkeypatch.setenv("MLX_PATCHES_STRICT", strict)
        session = session_for(*patches, always=[patch.id for patch in patches])
        monkeypatch.setattr(activation, "_session", session)
        return session

    return make


@pytest.mark.parametrize("known", ["fix", "all", "Their_Package", "their.package", "twice", "host"])
def test_known_names(make_session, fake, caplog, known):
    points = "[mlx_patches.patches]\ntwice = nowhere:X\n[mlx_patches.hosts]\nhost = nowhere:X\n"
    (fake.install("their-package") / "entry_points.txt").write_text(points)
    assert make_session(patch_of("attend"), disable=known).unknown == ()
    assert "MLX_PATCHES_DISABLE" not in caplog.text


def test_audit_names_unknown_ids(make_session, caplog):
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        session = make_session(patch_of("attend"), disable="fixx, nonsense")
        mlx_patches.apply()
        mlx_patches.apply()
    assert len(session.unknown) == len(caplog.records) == 2
    report = mlx_patches.audit()
    assert set(session.unknown) <= set(report.findings)
    assert "'fixx', which is neither a patch" in report.findings[-2]
    assert report.findings[-2].endswith("did you mean 'fix'?")
    assert report.exit_code() == 1


def test_audit_when_switched_off(make_session, fake, monkeypatch):
    make_session(patch_of("attend"))
    audit = mlx_patches.audit()
    assert (audit.active, audit.exit_code()) == (False, 1)
    for limit in ("", "their-server"):
        monkeypatch.setattr(started, "host", limit)  # as in an environment enabled for this host
        monkeypatch.setenv("MLX_PATCHES", "0")
        audit = mlx_patches.audit()
        assert (audit.active, audit.exit_code(), audit.exit_code(strict=True)) == (False, 0, 1)
        assert audit.outcomes[0].reason.endswith("; switched off by MLX_PATCHES")
    mlx_patches.apply()
    assert mlx_patches.audit().active


def test_dry_run_ignores_strict(make_session):
    def broken(original):
        raise ValueError("on purpose")

    make_session(patch_of(target("attend", factory=broken)), strict="1")
    load("fake_lm.cache").attend = lambda x: x
    assert statuses(mlx_patches.apply(dry_run=True)) == ["conflict"]
    with pytest.raises(MlxPatchesError, match="conflict"):
        mlx_patches.apply()


@pytest.mark.parametrize("file", ["__init__", "cache"])
def test_strict_during_import(make_session, fake, file):
    """A package that calls apply() itself while it is imported."""
    make_session(patch_of(target("attend", factory=lambda original: original)), strict="1")
    source = f"import mlx_patches\nmlx_patches.apply()\n{CACHE if file == 'cache' else ''}"
    fake.write(f"fake_lm/{file}.py", source)
    for _ in range(2):
        with pytest.raises(MlxPatchesError, match="is the original"):
            load("fake_lm.cache")
    mlx_patches.restore()
