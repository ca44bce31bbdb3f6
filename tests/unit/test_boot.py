"""Activation by the .pth file, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.activation import boot, enable, settings
from mlx_patches.core.contribution import Host

ROOT = Path(__file__).parents[2]
SWITCH = settings.SWITCH
BOOT = "import mlx_patches.activation.boot as boot; boot.start(); "


def run(code, *, path=None, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **({"PYTHONPATH": str(path)} if path else {}), **environment},
    )


@pytest.fixture
def package(tmp_path):
    """A stand-in for mlx_lm that imports nothing."""
    models = tmp_path / "mlx_lm" / "models"
    models.mkdir(parents=True)
    for folder in (models.parent, models):
        (folder / "__init__.py").write_text("")
    (models / "cache.py").write_text("")
    return tmp_path


def test_waits_without_importing_anything_heavy():
    done = run(
        BOOT + "import sys; print(sorted({m.partition('.')[0] for m in sys.modules} & "
        "{'mlx', 'mlx_lm', 'wrapt', 'yaml', 'packaging', 'json', 'logging', 'inspect', 're'}))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_applies_at_the_first_import(package):
    done = run(
        BOOT
        + "import sys; assert 'mlx_patches.activation.session' not in sys.modules; import mlx_lm;"
        "from mlx_patches.activation.session import session; print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_a_host_s_own_modules_are_not_too_early(tmp_path):
    (tmp_path / "vllm_mlx").mkdir()
    for name in ("__init__", "reasoning"):
        (tmp_path / "vllm_mlx" / f"{name}.py").write_text("")
    done = run(
        BOOT + "import vllm_mlx.reasoning; from mlx_patches.activation.session import session;"
        "print(session().active)",
        path=tmp_path,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_applies_at_once_where_the_package_is_there_already(package):
    done = run(
        "import mlx_lm; " + BOOT + "from mlx_patches.activation.session import session;"
        "print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_environment_variable_switches_it_off(package):
    done = run(
        BOOT + "import mlx_lm, sys; print('mlx_patches.activation.session' in sys.modules)",
        path=package,
        MLX_PATCHES="0",
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("", None), (" ", None), ("1", True), (" On ", True), ("off ", False), ("NO", False)],
)
def test_the_switch_is_read_as_people_write_it(monkeypatch, value, wanted):
    monkeypatch.setenv(SWITCH, value)
    assert settings.switch() is wanted
    assert settings.junk() == ""


@pytest.mark.parametrize("value", ["n", "none", "banana", "2"])
def test_junk_means_off_and_is_warned_of_once_where_mlx_is_imported(package, value):
    waits = run(BOOT + "print(boot.active())", path=package, MLX_PATCHES=value)
    assert (waits.stdout, waits.stderr) == ("False\n", "")
    done = run(
        BOOT + "import mlx_lm.models.cache, sys; print('mlx_patches.activation.session' in"
        " sys.modules)",
        path=package,
        MLX_PATCHES=value,
    )
    assert done.stdout == "False\n"
    assert done.stderr.count("\n") == 1
    assert f"MLX_PATCHES is {value!r}, which is neither on" in done.stderr


def test_a_long_value_is_cut(monkeypatch):
    monkeypatch.setenv(SWITCH, "x" * 5000)
    assert len(settings.junk()) < 200


def test_an_environment_starts_when_its_path_is_complete(tmp_path):
    """The .pth file of an editable install may come after ours."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / enable.NAME).write_text(enable.line())
    (site / "zzz.pth").write_text(f"{ROOT}\n")
    code = "import mlx_patches.activation.boot as b; print(b.active())"
    python = environment / "bin" / "python"
    assert subprocess.check_output([python, "-c", code], text=True).strip() == "True"
    (site / "zzz.pth").unlink()
    orphan = subprocess.run([python, "-c", "print(1)"], capture_output=True, text=True)
    assert (orphan.returncode, orphan.stdout, orphan.stderr) == (0, "1\n", "")
    (site / "mlx_patches").mkdir()  # what an uninstaller leaves
    (site / "mlx_patches" / "__init__.py").write_text("raise RuntimeError('half installed')")
    broken = subprocess.run([python, "-c", "print(1)"], capture_output=True, text=True)
    assert (broken.returncode, broken.stdout, broken.stderr) == (0, "1\n", "")


def test_where_strict_a_process_does_not_start_without_us(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    site = next(tmp_path.glob("lib/python*/site-packages"))
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
        done = subprocess.run(
            [tmp_path / "bin" / "python", "-c", "print('started')"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": "", SWITCH: "", "MLX_PATCHES_STRICT": "", **variables},
        )
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
        (["python", "-m", "host_package_2"], False),
        (["python", "-c", "import host_package"], False),
        (["python", "/venv/bin/other"], False),
        (["python"], False),
        (["python.exe", "host.exe"], True),
    ],
)
def test_a_hosts_processes_are_known_by_their_command_line(command, expected):
    assert boot.starts(command, ["host"], ["host_package"]) is expected


def test_a_limit_holds_for_other_processes_and_children_inherit_it():
    limited = "boot.start('host', ['host'], []); print(boot.active())"
    code = f"import mlx_patches.activation.boot as boot, os, sys; {limited}"
    assert run(code).stdout.strip() == "False"
    assert run(code, MLX_PATCHES="1").stdout.strip() == "True"
    as_host = f"import sys; sys.orig_argv = ['python', 'host']; {code}"
    as_host += f"; print(os.environ['{SWITCH}'])"
    assert run(as_host, MLX_PATCHES="").stdout.split() == ["True", "1"]
    assert run(as_host, MLX_PATCHES="0").stdout.split() == ["False", "0"]


def test_a_server_is_named_by_its_command(site):
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


def test_limits_come_from_the_hosts_own_metadata():
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


def test_enable_writes_at_once_and_never_through_a_link(monkeypatch, tmp_path):
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

    monkeypatch.setattr(enable.os, "replace", full)
    with pytest.raises(MlxPatchesError, match="cannot be written"):
        enable.enable(profile="batch")
    assert [one.name for one in site.iterdir()] == [enable.NAME]  # the old file, and nothing else
    assert path.read_text() == enable.line()


def test_python_3_15_gets_its_own_file(monkeypatch, tmp_path):
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


def test_read_only_environment_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setattr(enable, "_path", lambda: tmp_path / "missing" / enable.NAME)
    with pytest.raises(MlxPatchesError, match="cannot be written"):
        enable.enable()
    monkeypatch.setattr(enable, "_path", lambda: Path(tmp_path))
    with pytest.raises(MlxPatchesError, match="cannot be removed"):
        enable.disable()


@pytest.mark.parametrize("restored", (False, True))
def test_a_harness_that_puts_the_finders_back_does_not_end_it(package, restored):
    done = run(
        BOOT
        + "import sys, mlx_patches; saved = list(sys.meta_path); import mlx_lm;"
        + ("mlx_patches.restore();" if restored else "")
        + "sys.meta_path[:] = saved; import mlx_lm.models.cache;"
        "from mlx_patches.activation.session import session; print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == str(not restored), done.stderr


def test_restore_stops_the_wait(package):
    done = run(
        BOOT + "import mlx_patches; mlx_patches.restore(); import mlx_lm.models.cache;"
        "from mlx_patches.activation.session import session; print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_plugin_that_imports_a_release_at_its_top_does_not_hang(package):
    """Entry points load outside of every lock, and the import that they trigger applies patches."""
    info = package / "their_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlx_patches.patches]\nx = their_plugin:NOTHING\n")
    (package / "their_plugin.py").write_text("import mlx_lm.models.cache\nNOTHING = None\n")
    done = run(
        BOOT + "import faulthandler; faulthandler.dump_traceback_later(20, exit=True);"
        "import mlx_patches; mlx_patches.status(); import mlx_lm.models.cache;"
        "from mlx_patches.activation.session import session; print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == "True", done.stderr
