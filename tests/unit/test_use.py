"""Command lines of operators and maintainers: repeated options, settings, completion, progress."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from rich.console import Console

import mlx_patches
from mlx_patches import MlxPatchesError, Status, cli
from mlx_patches.activation import enable, run, started
from mlx_patches.auditing import completion, configuration, explanation, tables
from mlx_patches.core import model_types
from mlx_patches.core.patch import Attribute
from mlx_patches.lab import report

from .conftest import load, manager_for, patch_of, run_command, target

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder in a project with settings; returns the function that writes them."""
    folder = tmp_path / "project" / "inner"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(text, user=False):
        path = tmp_path / ("config/mlx-patches/config.toml" if user else "project/pyproject.toml")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    return write


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(cli.cli.commands))
def test_every_command_is_quiet_or_verbose(invoke, name):
    flags = {flag for one in cli.cli.commands[name].params for flag in one.opts}
    assert {"-q", "--quiet", "-v", "--verbose"} <= flags
    done = invoke(name, "-q", "-v")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "-q contradicts -v: omit one of them" in done.err


def test_audit_takes_several_models(invoke, llama):
    folder = str(llama)
    both = invoke("audit", "-q", folder, "--model", folder, "--host", "mlx_lm.server")
    assert both.out == 2 * invoke("audit", "-q", "--model", folder).out
    found = json.loads(invoke("audit", "--json", folder, folder).out)
    assert [one["model"]["model_type"] for one in found] == ["llama", "llama"]
    assert len(json.loads(invoke("audit", "--format", "sarif", folder, folder).out)["runs"]) == 2
    done = invoke("audit", folder, folder, "--html", "page.html")
    assert done.code == 2 and "give one model or host" in done.err


def test_enable_for_several_hosts(monkeypatch, invoke, tmp_path):
    limit = enable.limit_to("pytest")
    monkeypatch.setattr(enable, "_find_host", lambda host: limit._replace(name=host))
    both = enable.limit_to("a", "b", "a")
    assert (both.name, both.scripts, both.modules) == ("a, b", limit.scripts, limit.modules)
    monkeypatch.setattr(enable, "enable", lambda limit, profile: tmp_path)
    monkeypatch.setattr(started, "host", "vllm-mlx")
    assert "(before: vllm-mlx)" in invoke("enable", "--host", "a").out
    assert invoke("enable", "-q", "--host", "a").out == ""


def test_contradictions_are_one_line(invoke, affected, project):
    path = project('[tool.mlx-patches]\nignore = ["fix"]\n')
    done = invoke("audit", "--strict")
    assert done.code == 2 and done.err.splitlines()[-1].startswith(
        f"mlx-patches: --strict counts what --ignore accepts: omit ignore in {path}"
    )
    done = invoke("lab", "--weights", "a", "--config", "b", "--dtype", "bfloat16")
    assert "omit --config and --dtype" in done.err and done.err.count("\n") == 1
    done = invoke("lab", "--unpatched", "--both")
    assert (done.code, done.err.count("\n")) == (2, 1) and "--both contradicts --un" in done.err
    assert "--json is --format json" in invoke("audit", "--json", "--format", "sarif").err
    for options, omitted in (
        (("-q", "--all"), "--all"),
        (("--html", "-", "--json"), "--json"),
        (("--html", "-", "--format", "sarif"), "--format"),
    ):
        done = invoke("audit", *options)
        assert (done.code, done.out) == (2, "")
        assert f": omit {omitted}" in done.err.splitlines()[-1]


@pytest.mark.parametrize("start", [["-m", "mlx_patches"], ["-c", "import {0}; {0}.main()"]])
def test_interrupt_during_start(tmp_path, start):
    """The import of click takes long enough for it."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    words = [word.format("mlx_patches.__main__") for word in start]
    done = run_command([sys.executable, *words, "audit"], PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (130, "mlx-patches: interrupted\n")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"mlx-patches": "mlx_patches.__main__:main"}


def single_options():
    """Every option that takes one value: (command, flag, two values)."""
    for command, own in cli.cli.commands.items():
        for one in own.params:
            if isinstance(one, click.Option) and not (one.is_flag or one.multiple):
                values = getattr(one.type, "choices", ["1", "2"])
                values = ["any", "crash"] if one.name == "fail_on" else list(values[:2])
                if len(values) == 2:
                    yield command, one.opts[0], values


@pytest.mark.parametrize(("command", "flag", "values"), list(single_options()))
def test_option_with_two_values_is_refused(invoke, command, flag, values):
    done = invoke(command, flag, values[0], flag, values[1])
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"{flag} {values[0]} contradicts {flag} {values[1]}: omit one" in done.err


def test_repeated_value_is_accepted(invoke, affected):
    once = invoke("audit", "--fail-on", "crash,memory")
    assert invoke("audit", "--fail-on", "crash,memory", "--fail-on", "memory,crash") == once
    done = invoke("audit", "--fail-on", "any", "--fail-on", "memory")
    assert "--fail-on any contradicts --fail-on memory: omit one of them" in done.err
    done = invoke("audit", "--format", "json", "--format", "text", "--help")
    assert done.code == 0 and "Usage:" in done.out


def test_own_environment_precedes_path(monkeypatch, tmp_path):
    (tmp_path / "python").write_text("")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    beside = Path(sys.executable).with_name("python")
    assert shutil.which("python") == str(tmp_path / "python")
    assert run.launch(["python", "-c", "1"]).command[0] == str(beside)


def test_page_is_reported(invoke, affected, tmp_path):
    path = tmp_path / "page.html"
    done = invoke("audit", "-q", "--html", str(path))
    assert done.err == f"{path}: wrote the report page\n"
    assert path.exists()


# -- settings ----------------------------------------------------------------------------------


def test_settings_are_defaults(invoke, affected, project):
    assert invoke("audit").code == 1
    project('ignore = ["fix"]\nprofile = "batch"\n', user=True)
    done = invoke("audit")
    assert done.code == 0 and "settings from" in done.err
    assert "settings from" not in invoke("audit", "-q").err
    # A project's settings override the user's, an option both.
    project('[tool.mlx-patches]\nignore = []\nfail-on = ["crash"]\n')
    assert invoke("audit").code == 0
    assert invoke("audit", "--fail-on", "any").code == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profle = 'safe'", "unknown key 'profle'; use fail-on, ignore, profile"),
        ("profile = 'saef'", "profile: no profile 'saef'; choose from batch"),
        ("profile = ['safe']", 'profile: expected a string, such as "safe"'),
        ("ignore = 'fix'", 'ignore: expected a list of strings, such as ["a", "b"]'),
        ("ignore = ['fxi']", "ignore: no patch 'fxi'; did you mean 'fix'?"),
        ("fail-on = ['crush']", "fail-on: no severity 'crush'; use wrong-text, crash"),
        ("fail-on = []", "fail-on: expected at least one severity; omit the key"),
        ("profile", "not TOML: "),
        ("profile = " + "[" * 9999, "not TOML: "),
    ],
)
@pytest.mark.parametrize("user", [False, True])
def test_bad_settings_are_one_line(invoke, affected, project, text, problem, user):
    path = project(text if user else f"[tool.mlx-patches]\n{text}\n", user)
    for command in ("audit", "enable"):
        done = invoke(command)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.startswith(f"mlx-patches: {path}: ") and problem in done.err
    # Commands without settings and help still work.
    assert invoke("ps").code == invoke("audit", "--help").code == 0


def test_severities_of_a_program(affected):
    audit = mlx_patches.audit()
    assert audit.exit_code(fail_on=["any"]) == audit.exit_code() == 1
    for fail_on, problem in (
        (["krash"], "no severity 'krash'; use wrong-text, crash"),
        ("crash", "fail_on must be a list of severities: write ['crash']"),
    ):
        with pytest.raises(MlxPatchesError, match=re.escape(problem)):
            audit.exit_code(fail_on=fail_on)
    with pytest.raises(MlxPatchesError, match=re.escape("write ['fix']")):
        audit.ignoring("fix")


def test_misspelt_table_is_one_line(invoke, affected, project):
    path = project("[tool.mlx_patches]\nignore = ['fix']\n")
    done = invoke("audit")
    assert done.code == 2
    assert done.err == f"mlx-patches: {path}: [tool.mlx_patches]: write it as [tool.mlx-patches]\n"


@pytest.mark.parametrize("user", [False, True])
def test_settings_that_cannot_be_read(invoke, affected, project, user):
    text = "[tool.mlx-patches]\nprofile = 'safe'\n"
    path = project("", user=user)
    for content, problem in (
        (text.encode("utf-16"), "not UTF-8; save it as UTF-8"),
        (text.encode() + b"#" * configuration.MAX_BYTES, "larger than 1000000 bytes; not settings"),
    ):
        path.write_bytes(content)
        assert invoke("audit").err == f"mlx-patches: {path}: {problem}\n"
    for make, problem in (
        (path.mkdir, "not a regular file"),
        (lambda: os.mkfifo(path), "not a regular file"),
        (lambda: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda: path.symlink_to(path.name), "(Too many levels of symbolic links); make it a file"),
        (lambda: path.symlink_to("gone"), "(No such file or directory); make it a file"),
    ):
        path.rmdir() if path.is_dir() else path.unlink()
        make()
        done = invoke("audit")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith(f"mlx-patches: {path}: cannot be read") and problem in done.err


def test_settings_may_begin_with_a_byte_order_mark(invoke, affected, project):
    project("\ufeff[tool.mlx-patches]\nignore = ['fix']\n")
    assert invoke("audit").code == 0


def test_other_projects_are_not_read(invoke, affected, project):
    for text in ("[project\nname = 'broken'\n", "tool = 'mlx-patches'\n", ""):
        project(text)
        assert invoke("audit", "-q").err == ""


# -- screens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_break_no_word(width):
    rows = [
        ("server-ignored-parameters", "fixed-upstream", "security, safe", "a word " * 12, ""),
        ("offset-alias", "applied", "", "mlx_vlm.stream_generate: wrong", ""),
    ]
    heads = ("patch", "here", "profiles", "without it", "from")
    console = Console(width=width, file=io.StringIO())
    tables.show((heads, rows), console=console)
    text = console.file.getvalue()
    assert set(" ".join(cell for row in rows for cell in row).split()) <= set(text.split())
    assert max(map(len, text.splitlines())) <= width
    assert "from" not in text  # a column without a cell


@pytest.mark.parametrize("width", [40, 80, 200])
def test_explain_fits_the_screen(invoke, affected, monkeypatch, width):
    words = "Each read returns a new handle, which later updates leave alone. " * 3
    doc = f"""Headline.

Why
    {words}

    - {words}
    - An item.
How
    One line
    and its rest.
"""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = explanation.fill(explanation.plain(doc)).splitlines()
    assert max(map(len, lines)) <= min(width, explanation.MAX_WIDTH)
    assert " ".join(" ".join(lines).split()) == " ".join(doc.split())
    assert lines.index("Why") > lines.index("Headline.")
    assert lines[-2:] == ["How", "    One line and its rest."]
    assert "    - An item." in lines


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(
    "command",
    ["audit llama", "recommend qwen3_5", "explain -v offset-alias", "audit --help", "lab --help"],
)
def test_screens_fit(invoke, llama, monkeypatch, command, width):
    """Only a single word, such as a target, and a command to be copied may be longer."""
    monkeypatch.setenv("COLUMNS", str(width))
    copied = ("Fix:", "Next:", "Proof", "Environment:", "    mlx-patches probe")
    for line in invoke(*command.split()).out.splitlines():
        single = " " not in line.strip().removeprefix("- ")
        assert len(line) <= width or single or line.startswith(copied), line


def test_audit_of_a_screen_of_one_column(invoke, llama, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1")
    assert "llama" in invoke("audit", "llama").out


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(invoke, shell):
    if shell != "bash" or shutil.which("bash"):
        script = invoke("completion", shell).out
        assert "_MLX_PATCHES_COMPLETE" in script
        assert ("autoload -Uz compinit" in script) is (shell == "zsh")  # a plain .zshrc lacks it


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize("begun", ["--fail-on crash,m", "--fail-on=crash,m"])
def test_fish_completes_values_of_lists(invoke, tmp_path, begun):
    (tmp_path / "script").write_text(invoke("completion", "fish").out)
    line = f'source {tmp_path}/script; complete -C "mlx-patches audit {begun}"'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["fish", "-c", line], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.stdout.split() == [f"{begun.split(' ')[-1].removesuffix('m')}memory"]


@pytest.mark.parametrize("shell", [(), ("tcsh",), ("",)])
def test_completion_of_no_known_shell(invoke, shell):
    result = invoke("completion", *shell)
    assert result.code == 2
    assert "bash" in result.err
    assert result.err.count("\n") == 1


def test_completed_names(site, affected):
    def names(kinds, begun=""):
        return [one.value for one in completion.complete(kinds, begun) if one.type == "plain"]

    model_types.remapping.cache_clear()
    site.install("mlx-lm", "0.32.2")
    site.write("mlx_lm/models/llama.py")
    site.write("mlx_lm/models/gemma/__init__.py")
    site.write("mlx_lm/utils.py", "MODEL_REMAPPING = {'mistral': 'llama'}")
    assert names("patches") == ["fix"]
    assert {"gemma", "llama", "mistral"} <= set(names("models"))
    assert names("patches models", "f") == ["fix"]
    assert names("hosts") == ["mlx_lm.server"]
    assert names("profiles", "s") == ["safe", "security", "server"]
    assert [one.type for one in completion.complete("models", "./")] == ["file"]


def complete_line(monkeypatch, capsys, shell, line):
    """What a shell gets to complete the last word of a command line."""
    words = line.split(" ")
    monkeypatch.setenv("_MLX_PATCHES_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
    with pytest.raises(SystemExit):
        cli.cli.main(prog_name="mlx-patches", complete_var="_MLX_PATCHES_COMPLETE")
    return capsys.readouterr().out.split("\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("lab --scenario ", {"left-padded", "features-solo", "streamed", "walks"}),
        ("lab --reference --scenario ref", {"reference", "reference-images"}),
        ("lab --server x --scenario s", {"seed", "stop"}),
        ("audit --fail-on mem", {"memory"}),
        ("audit --fail-on crash,mem", {"crash,memory"}),
        ("run --profile safe,sec", {"safe,security"}),
        ("lab --dtype b", {"bfloat16"}),
    ],
)
def test_completed_values(monkeypatch, capsys, shell, line, values):
    found = complete_line(monkeypatch, capsys, shell, f"mlx-patches {line}")
    if shell != "zsh":  # a line for the type, the value and its help each
        found = [one.partition(",")[2] for one in found]
    begun = line.split(" ")[-1]
    assert values <= set(found)
    assert all(one.startswith(begun) for one in found if one not in ("plain", "_", ""))


@pytest.mark.parametrize("name", sorted(cli.cli.commands))
def test_every_value_completes(name):
    """Except numbers and free text."""
    free = {"walks", "seed", "replay", "jobs", "timeout", "server", "url", "command"}
    command = cli.cli.commands[name]
    for one in command.params:
        if getattr(one, "is_flag", False) or one.name in free:
            continue
        context = click.Context(command)
        context.params = {}
        assert one.shell_complete(context, "") or one.name == "hosts", one.name


# -- progress ----------------------------------------------------------------------------------


def test_piped_progress_has_the_time_left(capsys, monkeypatch):
    clock = iter([0.0, 10.0, 14.0])
    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with report.progress(2, "each up to 120 s") as advance:
        advance("one")
        advance("other")
    assert capsys.readouterr().err.splitlines() == [
        "2 steps, each up to 120 s",
        "[1/2] one: 10 s, 10 s left",
        "[2/2] other: 14 s, 0 s left",
    ]


def test_quiet_command_has_no_progress(capsys):
    with click.Context(cli.cli) as context:
        context.meta["quiet"] = True
        with report.progress(1, "up to 1 s") as advance:
            advance("one")
    assert capsys.readouterr().err == ""


# -- a host's program --------------------------------------------------------------------------


def test_adoption_page_runs(affected, fake, monkeypatch):
    """Its Python, from the first line to the last."""
    page = (ROOT / "docs/adopt.md").read_text()
    first, health, end, host = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope = {}
    exec(first.replace("row-by-row", "fix"), scope)
    assert {one.reason for one in scope["report"]} == {"skipped by apply(without=...)"}
    monkeypatch.setattr(mlx_patches, "needs", lambda model: ())  # no package has models
    exec(health, scope)
    assert scope["health"]["ok"] and not scope["broken"]
    assert len(json.dumps({**scope["health"], "patches": dict.fromkeys(Status, 10**6)})) < 1000
    fake.install("your-host", "1.0")
    with pytest.raises(SystemExit):
        exec(end, scope)
    exec(host, scope)
    assert scope["HOST"].scripts == ("your-host", "your-host-worker")


def test_patch_that_is_left_out(affected, fake):
    cache = load("fake_lm.cache")
    original = cache.attend
    mlx_patches.apply()
    assert cache.attend is not original
    mlx_patches.apply(without=["fix"], dry_run=True)
    assert cache.attend is not original
    mlx_patches.apply(without=["fix"])
    assert cache.attend is original
    (one,) = mlx_patches.apply(["fix"], strict=True)  # whoever requests it
    assert (one.status, one.by_choice) == ("disabled", True)
    mlx_patches.restore()
    mlx_patches.apply()
    assert cache.attend is not original
    mlx_patches.restore()
    with pytest.raises(MlxPatchesError, match="without must be a list of ids"):
        mlx_patches.apply(without="fix")
    with pytest.raises(MlxPatchesError, match="no patch 'fxi'"):
        mlx_patches.apply(without=["fxi"])


def test_strict_error_names_the_replacement_and_its_owner(affected, fake):
    fake.write("fake_host/patches.py", "def attend(x):\n    return x\n")
    info = fake.install("Fake-Host-Server", "2.0")
    (info / "RECORD").write_text("fake_host/__init__.py,,\nfake_host/patches.py,,\n")
    load("fake_lm.cache").attend = load("fake_host.patches").attend
    with pytest.raises(MlxPatchesError) as raised:
        mlx_patches.apply(strict=True)
    assert "fake_lm.cache:attend: conflict: " in str(raised.value)
    assert "was replaced by fake_host.patches:attend" in str(raised.value)
    assert "(fake_host is installed by Fake-Host-Server)" in str(raised.value)


def test_replaced_body_is_named(fake):
    """A patch of a new attribute depends on the code of other functions."""
    wanted = target(
        "Cache.extra",
        factory=lambda original: Attribute("extra"),
        fingerprint_of=("Cache.update",),
        defines_new_attribute=True,
    )
    fake.write("fake_host/patches.py", "def update(self, n):\n    return n\n")
    load("fake_lm.cache").Cache.update = load("fake_host.patches").update
    rule = {"affected": ">=0", "bodies": {"Cache.extra": {"affected": ["0" * 16]}}}
    patch = patch_of(wanted)
    with pytest.raises(MlxPatchesError, match=r"Cache\.update was replaced by fake_host\.p"):
        manager_for(patch, rule=rule).apply(patch, strict=True)


def test_classifiers_and_python():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = {one.rpartition(" ")[2] for one in about["classifiers"] if ":: Python :: 3." in one}
    assert pythons == {"3.11", "3.12", "3.13", "3.14"}
    assert os.path.exists(ROOT / "mlx_patches/py.typed")
