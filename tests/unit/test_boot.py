import errno
import os
from pathlib import Path

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.activation import boot, enable, settings
from mlx_patches.core.contribution import Host

from .conftest import make_environment, run_code, run_command

ROOT = Path(__file__).parents[2]
SWITCH = settings.SWITCH
BOOT = "import mlx_patches.activation.boot as boot; boot.start(); "
ACTIVE = "from mlx_patches.activation.session import session; print(session().active)"
LOADED = "import sys; print('mlx_patches.activation.session' in sys.modules)"
RESTORE = "import mlx_patches; mlx_patches.restore(); "
AGAIN = f"import mlx_lm.models.cache; {ACTIVE}"
HARNESS = "import sys; saved = list(sys.meta_path); import mlx_lm; "


@pytest.fixture
def package(tmp_path):
    for folder in ("mlx_lm/models", "vllm_mlx/reasoning"):
        (tmp_path / folder).mkdir(parents=True)
        for place in (tmp_path / folder, (tmp_path / folder).parent):
            (place / "__init__.py").write_text("")
    (tmp_path / "mlx_lm" / "models" / "cache.py").write_text("")
    return tmp_path


def test_boot_is_light():
    heavy = {"mlx", "mlx_lm", "wrapt", "yaml", "packaging", "json", "logging", "inspect", "re"}
    code = f"import sys; print({heavy!r} & {{m.partition('.')[0] for m in sys.modules}})"
    assert run_code(BOOT + code)[0] == ["set()"]


@pytest.mark.parametrize(
    ("code", "on"),
    [
        # At the first import, or at once if the package is already imported.
        (BOOT + LOADED, False),
        (f"{BOOT}import mlx_lm; {ACTIVE}", True),
        (f"import mlx_lm; {BOOT}{ACTIVE}", True),
        # A host's own modules are not too early.
        (f"{BOOT}import vllm_mlx.reasoning; {ACTIVE}", True),
        # A harness that puts the finders back does not end it; restore does.
        (f"{BOOT}{HARNESS}sys.meta_path[:] = saved; {AGAIN}", True),
        (f"{BOOT}{HARNESS}{RESTORE}sys.meta_path[:] = saved; {AGAIN}", False),
        (f"{BOOT}{RESTORE}{AGAIN}", False),
    ],
)
def test_patches_of_enabled_process(package, code, on):
    assert run_code(code, package)[0] == [str(on)]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("", None), (" ", None), ("1", True), (" On ", True), ("off ", False), ("NO", False)],
)
def test_switch_values(monkeypatch, value, wanted):
    monkeypatch.setenv(SWITCH, value)
    assert settings.switch() is wanted
    assert settings.junk() == ""


def test_invalid_switch_is_off_and_warned_once(package):
    code = f"{BOOT}import mlx_lm.models.cache; {LOADED}"
    lines, errors = run_code(code, package, MLX_PATCHES="banana")
    assert lines == ["False"]
    assert errors.count("\n") == 1
    assert "MLX_PATCHES is 'banana', an unknown value" in errors


def test_boot_after_path_is_complete(tmp_path):
    """The .pth file of an editable install may come after ours."""
    python, site = make_environment(tmp_path / "env")
    (site / enable.NAME).write_text(enable.line())
    (site / "zzz.pth").write_text(f"{ROOT}\n")
    code = "import mlx_patches.activation.boot as b; print(b.active())"
    assert run_command([python, "-c", code]).stdout == "True\n"
    (site / "zzz.pth").unlink()
    orphan = run_command([python, "-c", "print(1)"])
    assert (orphan.returncode, orphan.stdout, orphan.stderr) == (0, "1\n", "")
    (site / "mlx_patches").mkdir()  # the leftovers of an uninstaller
    (site / "mlx_patches" / "__init__.py").write_text("raise RuntimeError('half installed')")
    broken = run_command([python, "-c", "print(1)"])
    assert (broken.returncode, broken.stdout, broken.stderr) == (0, "1\n", "")


def test_strict_process_needs_patches(tmp_path):
    python, site = make_environment(tmp_path)
    nothing = dict.fromkeys(("PYTHONPATH", SWITCH, "MLX_PATCHES_STRICT"), "")
    (site / enable.NAME).write_text(enable.line())
    (site / "mlx_patches").mkdir()
    (site / "mlx_patches" / "__init__.py").write_text("raise RuntimeError('half installed')")
    for variables, starts in (
        ({}, True),
        ({"MLX_PATCHES_STRICT": "0"}, True),
        ({"MLX_PATCHES_STRICT": "1"}, False),
        ({"MLX_PATCHES_STRICT": "1", "MLX_PATCHES": "1"}, False),
        ({"MLX_PATCHES_STRICT": "1", "MLX_PATCHES": "OFF "}, True),
    ):
        done = run_command([python, "-c", "print('started')"], **nothing | variables)
        assert done.stdout == ("started\n" if starts else ""), variables
        assert ("half installed" in done.stderr) is not starts, variables
        assert (done.returncode == 0) is starts, variables


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "/venv/bin/host", "serve"], True),
        (["python", "-X", "dev", "-W", "ignore", "/venv/bin/host"], True),
        (["python", "-um", "host_package"], True),
        (["python", "-u", "-m", "host_package.server"], True),
        (["python", "-m", "host_package"], True),
        (["python", "-mhost_package.server"], True),
        (["python", "-Xdev", "-Wignore", "-um", "host_package"], True),
        (["python", "--check-hash-based-pycs", "never", "--", "/venv/bin/host"], True),
        (["python", "-m", "host_package_2"], False),
        (["python", "-mfoo", "--api-key", "host"], False),
        (["python", "-X", "host", "-W", "host"], False),
        (["python", "-chost"], False),
        (["python", "-c", "import host_package"], False),
        (["python", "/venv/bin/other"], False),
        (["python"], False),
        (["python.exe", "host.exe"], True),
    ],
)
def test_host_processes_by_command_line(command, expected):
    assert boot.starts(command, ["host"], ["host_package"]) is expected


def test_host_limit_and_children():
    limited = "boot.start('host', ['host'], []); print(boot.active())"
    code = f"import mlx_patches.activation.boot as boot, os, sys; {limited}"
    assert run_code(code)[0] == ["False"]
    assert run_code(code, MLX_PATCHES="1")[0] == ["True"]
    as_host = f"import sys; sys.orig_argv = ['python', 'host']; {code}"
    as_host += f"; print(os.environ['{SWITCH}'])"
    assert run_code(as_host, MLX_PATCHES="")[0] == ["True", "1"]
    assert run_code(as_host, MLX_PATCHES="0")[0] == ["False", "0"]


def test_server_name(site):
    with pytest.raises(MlxPatchesError, match=r"mlx_lm\.server is not installed"):
        enable.limit_to("mlx_lm.server")
    site.install("mlx-lm", "0.31.3")
    limit = enable.limit_to("mlx_lm.server")
    assert (limit.name, limit.scripts, limit.modules) == (
        "mlx_lm.server",
        ("mlx_lm.server",),
        ("mlx_lm",),
    )
    started = ["python", "-m", "mlx_lm", "server"]
    assert boot.starts(started, limit.scripts, limit.modules)
    assert boot.starts(["python", "/bin/mlx_lm.server"], limit.scripts, limit.modules)
    assert not boot.starts(["python", "/bin/mlx_lm.generate"], limit.scripts, limit.modules)


def test_limits_from_metadata():
    limit = enable.limit_to("pytest")
    assert "pytest" in limit.scripts
    assert "pytest" in limit.modules
    with pytest.raises(MlxPatchesError, match="not installed"):
        enable.limit_to("no-such-host")
    with pytest.raises(MlxPatchesError, match="no command"):
        enable.limit_to("packaging")


def test_enable_and_disable(monkeypatch, tmp_path):
    monkeypatch.setattr(enable, "_path", lambda: tmp_path / enable.NAME)
    assert enable.enable().read_text() == enable.line()
    limit = Host("host", ("host",), ("host_package",))
    assert enable.enable(limit).read_text() == enable.line(limit)
    assert enable.disable() == tmp_path / enable.NAME
    assert enable.disable() is None


def test_enable_is_atomic_and_follows_no_link(monkeypatch, tmp_path):
    site, victim = tmp_path / "site", tmp_path / "victim"
    site.mkdir()
    victim.write_text("precious")
    path = site / enable.NAME
    path.symlink_to(victim)
    monkeypatch.setattr(enable, "_path", lambda: path)
    before = os.umask(0)
    try:
        enable.enable()
    finally:
        os.umask(before)
    assert (path.is_symlink(), path.read_text()) == (False, enable.line())
    assert victim.read_text() == "precious"
    assert path.stat().st_mode & 0o777 == 0o644

    def full(*names):
        raise OSError(28, "full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MlxPatchesError, match="cannot be written"):
        enable.enable(profile="batch")
    assert [one.name for one in site.iterdir()] == [enable.NAME]  # the old file, and nothing else
    assert path.read_text() == enable.line()


def test_python_3_15_file(monkeypatch, tmp_path):
    monkeypatch.setattr(enable, "_path", lambda: tmp_path / enable.NAME)
    monkeypatch.setattr(enable, "START_FROM", (3, 0))
    enable.enable()
    start = tmp_path / enable.START_NAME
    assert start.read_text() == "mlx_patches.activation.boot:start\n"
    enable.enable(Host("host", ("host",), ()))
    assert not start.exists()  # a .start file cannot pass the host as an argument
    enable.enable()
    enable.disable()
    assert list(tmp_path.iterdir()) == []


def test_read_only_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(enable, "_path", lambda: tmp_path / "missing" / enable.NAME)
    with pytest.raises(MlxPatchesError, match="cannot be written"):
        enable.enable()
    monkeypatch.setattr(enable, "_path", lambda: Path(tmp_path))
    with pytest.raises(MlxPatchesError, match="cannot be removed"):
        enable.disable()


def test_immutable_file(monkeypatch, tmp_path):
    def refuse(path, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system")  # also for a file that is missing

    path = tmp_path / enable.NAME
    monkeypatch.setattr(enable, "_path", lambda: path)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert enable.disable() is None
    path.touch()
    with pytest.raises(MlxPatchesError, match=r"make it writable, or .* MLX_PATCHES=0$") as raised:
        enable.disable()
    assert str(raised.value).startswith(f"{path}: cannot be removed (Read-only file system)")


def test_plugin_importing_release_does_not_hang(package):
    """Entry points load outside of every lock, and the import that they trigger applies patches."""
    info = package / "their_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlx_patches.patches]\nx = their_plugin:NOTHING\n")
    (package / "their_plugin.py").write_text("import mlx_lm.models.cache\nNOTHING = None\n")
    patient = "import faulthandler; faulthandler.dump_traceback_later(20, exit=True);"
    use = "import mlx_patches; mlx_patches.status(); import mlx_lm.models.cache;"
    assert run_code(BOOT + patient + use + ACTIVE, package)[0] == ["True"]


def test_front_process_is_patched(package):
    """mlx-openai-server checks requests in a process that imports no MLX."""
    (package / "starlette").mkdir()
    (package / "starlette" / "__init__.py").write_text("")
    code = f"{BOOT}import starlette; {LOADED}"
    for script, loaded in (("mlx-openai-server", True), ("uvicorn", False)):
        argv = f"import sys; sys.orig_argv = ['python', '/bin/{script}', 'launch']; "
        assert run_code(argv + code, PYTHONPATH=str(package))[0][-1] == str(loaded)
