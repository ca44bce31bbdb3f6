import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_patches import MlxPatchesError, cli
from mlx_patches.activation import enable
from mlx_patches.activation import session as activation
from mlx_patches.activation.profiles import PROFILES
from mlx_patches.auditing import explanation, formats, models
from mlx_patches.core import model_types
from mlx_patches.evidence import store
from mlx_patches.lab import report, runner

from .conftest import run_command

ROOT = Path(__file__).parents[2]


def test_quiet_and_verbose_audit(invoke, affected):
    done = invoke("audit", "-q")
    assert done.out == "1 known defect of the installed releases is not repaired here\n"
    assert done.code == 1
    plain, verbose = invoke("audit").out, invoke("audit", "-v").out
    assert "fake_lm.cache:attend" in verbose
    assert "fake_lm.cache:attend" not in plain


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [
        ("wrong-text", 1),
        ("crash", 0),
        ("memory,security", 0),
        ("any", 1),
        ("any,crash", 1),
        ("crash,wrong-text,", 1),
    ],
)
def test_fail_on(invoke, affected, fail_on, code):
    assert invoke("audit", "--fail-on", fail_on).code == code
    done = invoke("audit", "--fail-on", fail_on, "--json")
    assert (done.code, json.loads(done.out)["exit_code"]) == (code, code)


def test_markdown_and_sarif(invoke, affected):
    assert "| `fix` | wrong-text |  | goes wrong |" in invoke("audit", "--format", "markdown").out
    done = invoke("audit", "--format", "sarif")
    (run,) = json.loads(done.out)["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"], done.code) == ("fix", "error", 1)
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith(
        "cache.py"
    )
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["fix"]


def test_bug_report_is_short(invoke, affected, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_DISABLE", "x" * 100_000)
    done = invoke("report")
    assert done.code == 0
    assert done.out.startswith("### mlx-patches report\n")
    assert "| needed, not in effect | fix |" in done.out
    assert len(done.out.encode()) <= formats.MAX_REPORT + 1


def test_family_without_a_measured_release(invoke):
    done = invoke("recommend", "nemotron_parse")
    problem = "nemotron_parse was measured in no release; run mlx-patches lab --config FOLDER"
    assert (done.code, done.out, done.err) == (2, "", f"mlx-patches: {problem}\n")


def test_config_file_means_folder(invoke, llama):
    by_folder = invoke("audit", "--model", str(llama))
    by_file = invoke("audit", "--model", str(llama / "config.json"))
    assert by_folder.out == by_file.out
    assert by_folder.out.startswith("llama ")
    assert f"mlx-patches lab --config '{llama}'\n" in by_folder.out.partition("Proof (minutes):")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    "name",
    ["a\nb", 'it\'s $HOME `id` \\n\n!1 "x"', "tab\tand\x1b[31m7", "\udcff1", "\xa0é", "-x", "~a"],
)
def test_proof_of_any_path_is_one_line_to_paste(invoke, llama, name, shell, monkeypatch):
    folder = llama.rename(llama.with_name(name))
    monkeypatch.chdir(folder.parent)
    (line,) = [
        one for one in invoke("audit", "--model", f"./{name}").out.splitlines() if " lab " in one
    ]
    assert line.isprintable()
    command = line.partition("mlx-patches ")[2]
    done = subprocess.run(
        [shutil.which(shell) or pytest.skip(f"needs {shell}"), "-c", f"printf '%s\\0' {command}"],
        capture_output=True,
    )
    assert done.stdout.split(b"\0")[:-1] == [b"lab", b"--config", os.fsencode(name)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("org/name", "no such folder here or in "),
        ("./nowhere", "no such folder"),
        ("x" * 5000, "no model type"),
        ("a/" + "x" * 5000, "no such folder"),
        ("", "no model type"),
    ],
)
def test_missing_model_is_one_line(invoke, llama, model, message):
    done = invoke("audit", "--model", model)
    assert done.code == 2
    assert message in done.err
    assert len(done.err) < 500 and done.err.count("\n") == 1


def test_other_file_is_refused(llama):
    (llama / "generation_config.json").write_text("{}")
    with pytest.raises(MlxPatchesError, match=r"not a config\.json"):
        models.folder_of(str(llama / "generation_config.json"))


def test_many_stop_tokens_are_few_lines(invoke, llama):
    ids = list(range(200_000))
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    done = invoke("audit", "--model", str(llama))
    lines = done.out.splitlines()
    # A command is not wrapped: a terminal may show it as two lines.
    assert sum(-(-max(len(line), 1) // 80) for line in lines) <= 20
    assert done.out.startswith("llama ")


def test_hyphenated_modules(invoke, llama, site):
    site.write("mlx_lm/models/lfm2-vl.py")
    assert model_types.implementations("lfm2-vl") == {"mlx-lm": "lfm2-vl"}


def test_explain_affected(invoke, affected, fake):
    done = invoke("explain", "fix")
    assert "Here\n    affected, not repaired here (disabled)" in done.out
    assert "Severity\n    wrong-text" in done.out
    assert "`" not in done.out


def test_threads_become_urls():
    text = "Upstream\n    Reported as mlx-lm #1234, ``cache`` of other-thing #5."
    assert explanation.plain(text).endswith(
        "Threads\n    https://github.com/ml-explore/mlx-lm/issues/1234"
    )
    assert "`" not in explanation.plain(text)


@pytest.mark.parametrize("name", ["", " ", "-"])
@pytest.mark.parametrize(
    "command", [["audit"], ["report"], ["recommend", "--model", "llama"], ["enable"]]
)
def test_empty_host_name_is_refused(invoke, monkeypatch, command, name):
    monkeypatch.setattr(enable, "enable", None)  # a call, which would write, raises
    done = invoke(*command, "--host", name)
    assert (done.code, done.out) == (2, "")
    assert "'--host': expected the name of a distribution" in done.err


@pytest.mark.parametrize(
    "command",
    [
        ["enable", "--profile", ""],
        ["run", "--profile", "", "--", "true"],
        ["audit", "--html", ""],
        ["lab", "--write-model", ""],
        ["lab", "--out", ""],
        ["lab", "--weights", ""],
    ],
)
def test_empty_value_is_refused(invoke, monkeypatch, tmp_path, command):
    monkeypatch.setattr(enable, "enable", None)
    monkeypatch.chdir(tmp_path)
    done = invoke(*command)
    assert (done.code, done.out, [*tmp_path.iterdir()]) == (2, "", [])
    assert f"'{command[1]}': expected a value" in done.err


def test_recommend_suggests_model(invoke):
    assert "'Gemma44'; did you mean 'gemma4'?" in invoke("recommend", "--model", "Gemma44").err
    assert "config.json" in invoke("recommend", "--model", "zzzzz").err


def test_recommend_takes_models_like_audit(invoke, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    named = invoke("recommend", "--model", "llama")
    assert named.code == 0 and "newest to use" in named.out
    assert invoke("recommend", "llama").out == invoke("recommend", str(tmp_path)).out == named.out
    done = invoke("recommend")
    assert (done.code, done.out) == (2, "") and "mlx-patches recommend MODEL" in done.err
    config.write_text('{"model_type": "llama", "model_file": "own.py"}')
    done = invoke("recommend", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "not measured: this folder runs its own code (model_file" in done.err


@pytest.mark.parametrize("name", ["x" * 220, "new\nline", "\udcff", "a b", "\u65e5"], ids=ascii)
def test_path_of_a_model_is_taken_as_it_is(invoke, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert invoke("recommend", str(folder)).code == 0
    assert invoke("recommend", "--model", str(folder)).code == 0
    found = json.loads(invoke("audit", "--json", str(folder)).out)
    assert found["model"]["folder"] == str(folder)
    done = invoke("recommend", f"{folder}\n")
    assert (done.code, done.err.count("\n")) == (2, 1) and "no such folder" in done.err


def test_odd_version_is_not_measured():
    for version in ("1." * 2500, "../../x", "*", ""):
        assert store.load_set(f"mlx-lm {version}") is None


def test_output_that_lacks_a_character():
    """The summary of detokenizer-text has a letter that ASCII lacks."""
    command = [sys.executable, "-m", "mlx_patches", "list"]
    done = run_command(command, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"Hello!\u0120How" in done.stdout


def test_list_status(invoke, affected):
    done = invoke("list", "--json")
    assert done.code == 0
    (one,) = json.loads(done.out)["patches"]
    (target,) = one.pop("targets")
    assert one == {
        "patch": "fix",
        "summary": one["summary"],
        "severity": "wrong-text",
        "profiles": one["profiles"],
        "optional": False,
        "origin": "",
        "status": "disabled",
    }
    assert target["status"] == "disabled" and "not active here" in target["reason"]
    line = next(line for line in invoke("list").out.splitlines() if line.startswith("fix"))
    assert line.split()[1] == "disabled"


def test_list_without_mlx(invoke, monkeypatch):
    monkeypatch.setattr(activation, "_session", None)
    found = json.loads(invoke("list", "--json").out)["patches"]
    assert {one["status"] for one in found} == {"absent"}
    some = json.loads(invoke("list", "--json", "--profile", "security").out)["patches"]
    assert 0 < len(some) < len(found)
    assert all("security" in one["profiles"] for one in some)


def test_unknown_profile_is_warned_once(monkeypatch, caplog):
    from mlx_patches.activation.session import session

    monkeypatch.setattr(activation, "_session", None)
    monkeypatch.setenv("MLX_PATCHES_PROFILE", "bacth")
    current = session()
    caplog.clear()
    found = current.optional_requested()
    assert [one.message for one in caplog.records] == [
        "mlx_patches: MLX_PATCHES_PROFILE: no profile 'bacth'; choose from batch, server, security,"
        " safe"
    ]
    assert found == current.registry.in_profiles(PROFILES["safe"].names)
    for name, profile in (("security", "security"), ("batch", "batch"), ("", "server")):
        monkeypatch.setenv("MLX_PATCHES_PROFILE", name)
        assert current.optional_requested() == current.registry.in_profiles(PROFILES[profile].names)


def test_folder_names_are_escaped(invoke, affected, tmp_path):
    name = "evil\x1b[31m\x07"
    (tmp_path / name).mkdir()
    for arguments in (
        ["audit", "--model", str(tmp_path / name)],
        ["audit", "--html", str(tmp_path / name)],
    ):
        done = invoke(*arguments)
        assert done.code == 2
        assert r"evil\x1b[31m\x07" in done.err
        assert done.err.rstrip("\n").isprintable()


def test_model_errors_are_escaped():
    row = runner.Row("", "mlx-lm:x", False, "build", "not-built", "No file in \x1b[31m")
    assert report._reason([row]) == r"build: No file in \x1b[31m"


def test_exit_codes_are_documented_once():
    rule = re.search(r"Exit codes: (.*?)\.", " ".join(cli.cli.help.split()))[1]
    assert f"Exit codes: {rule}." in " ".join((ROOT / "README.md").read_text().split())
    for command in cli.cli.commands.values():
        assert "Exit code" not in command.help
