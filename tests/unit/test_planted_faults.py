"""A fault in a step of measuring never changes evidence, and is reported in one line."""

import contextlib
import datetime
import importlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import declarations
import evidence_file
import findings
import lab_evidence
import matrix_file
import measure_lab
import measure_matrix
import new_releases
import patch_evidence
import pytest
import release_sets

from mlx_patches.patches import catalogue

from .conftest import patch_of, registry_of, target

ONE = release_sets.ReleaseSet("mlx-lm 0.2", "2026-01-01", {})
PATCH = patch_of(target("f", distribution="mlx-lm"), id="a-patch")
PLACE = PATCH.targets[0].path
CELL = {"body": "b", "without": "red", "with": "green", "detail": "text"}
VERSIONS = {"mlx": "1.0", "mlx-lm": "0.2"}
MEASURED = {
    "set": ONE.name,
    "versions": VERSIONS,
    "without": {"llama": {"merge": "r"}},
    "with": {"llama": {"merge": "g"}},
    "needs": {"llama": {"merge": ["a-patch"]}},
}
GREEN = {"family": "mlx-lm:llama", "scenario": "merge", "verdict": "green", "detail": ""}


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """Evidence of a patch and of the lab; calling it returns the content of every file."""
    place = tmp_path / "evidence"
    place.mkdir()
    monkeypatch.setattr(patch_evidence, "PATCHES", place)
    monkeypatch.setattr(patch_evidence, "OTHER", place)
    monkeypatch.setattr(patch_evidence, "VERSIONS", place / "versions.json")
    monkeypatch.setattr(patch_evidence, "folder_of", lambda patch: place)
    monkeypatch.setattr(lab_evidence, "EVIDENCE", place)
    monkeypatch.setattr(evidence_file, "FOLDER", place)
    monkeypatch.setattr(release_sets, "environment", lambda one: contextlib.nullcontext("python"))
    monkeypatch.setattr(release_sets, "versions", lambda python: VERSIONS)
    monkeypatch.setattr(catalogue, "builtin", lambda: registry_of(PATCH))
    for name in ("mlx-lm 0.1", ONE.name):
        patch_evidence.add(PATCH, name, {PLACE: CELL})
    patch_evidence.add_versions({ONE.name: VERSIONS})
    lab_evidence.save(ONE, MEASURED)
    return lambda: {file.name: file.read_text() for file in sorted(place.iterdir())}


def row(verdict="green", detail="other", place=PLACE):
    return {"patch": "a-patch", "target": place, "body": "b", "verdict": verdict, "detail": detail}


def measure_patch(**options):
    options = {"patches": ["a-patch"], "again": True} | options
    measure_matrix.Measuring(**options).run([ONE], 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("not-run", "No module named 'uvicorn': install it")], "install it; nothing was rec"),
        ([], "did not all end; nothing was recorded"),
        ([row(place="m:other")], "did not all end; nothing was recorded"),
    ],
    ids=["a package is missing", "no rows", "other rows"],
)
@pytest.mark.parametrize("distinct", [False, True])
def test_probes_that_did_not_run(evidence, monkeypatch, rows, message, distinct):
    def child(one, python, patches, *flags):
        return [row()] if "--code" in flags else rows

    before = evidence()
    monkeypatch.setattr(measure_matrix, "child", child)
    with pytest.raises(SystemExit, match=message):
        measure_patch(distinct=distinct)
    assert evidence() == before


def test_red_code_that_is_not_applicable_now(evidence, monkeypatch):
    before = evidence()
    monkeypatch.setattr(measure_matrix, "child", lambda *_: [row("n/a", "no such layer")])
    with pytest.raises(SystemExit, match=r"was red and is n/a now \(no such layer\); nothing was"):
        measure_patch()
    assert evidence() == before


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("import time; time.sleep(60)", "not done after 2 s"),
        ("print('[{')", "printed no rows; nothing was recorded"),
        ("raise OSError(28, 'No space left on device')", "No space left on device"),
    ],
    ids=["killed", "timed out", "cut short", "disk full"],
)
def test_process_of_probes_that_ends(evidence, monkeypatch, script, message):
    before, run = evidence(), release_sets.run
    monkeypatch.setattr(
        release_sets, "run", lambda *_: run(Path(sys.executable), "-c", script, seconds=2)
    )
    with pytest.raises(SystemExit, match=message):
        measure_patch()
    assert evidence() == before


def test_other_mlx_than_of_the_evidence_that_stays(evidence, monkeypatch):
    other = patch_of(target("g", distribution="mlx-lm"), id="another-patch")
    monkeypatch.setattr(catalogue, "builtin", lambda: registry_of(PATCH, other))
    patch_evidence.add(other, ONE.name, {other.targets[0].path: CELL})
    before = evidence()
    monkeypatch.setattr(release_sets, "versions", lambda python: VERSIONS | {"mlx": "1.1"})
    with pytest.raises(SystemExit, match=r"mlx is 1\.1 here, its evidence is of 1\.0"):
        measure_patch()
    with pytest.raises(SystemExit, match=r"mlx is 1\.1 here, its evidence is of 1\.0"):
        measure_lab.measure(ONE, ("with",), 1, again=True)
    assert evidence() == before


def test_environment_that_lacks_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(release_sets, "make", lambda one, folder: Path(sys.executable))
    with release_sets.environment(release_sets.ReleaseSet("pytest 1", "", {})):
        pass
    site = tmp_path / "a_package-1.dist-info"
    site.mkdir()
    (site / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: a-package\nVersion: 1\nRequires-Dist: pytest<1\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    broken = release_sets.environment(release_sets.ReleaseSet("a-package 1", "", {}))
    with pytest.raises(SystemExit, match="is broken: pytest<1, but pytest is "), broken:
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "not-run", "detail": "No module named 'x': install it"},
        {"scenario": "process", "verdict": "red", "detail": "timed out after 120 s, in merge"},
        {"scenario": "process", "verdict": "not-run", "detail": "crashed: signal 9, in merge"},
    ],
    ids=lambda change: change["detail"],
)
def test_lab_that_did_not_run(evidence, monkeypatch, change):
    before = evidence()
    monkeypatch.setattr(measure_lab.Lab, "cells", lambda lab, part: [GREEN | change])
    monkeypatch.setattr(measure_lab.runner, "device", lambda python: "cpu")
    with pytest.raises(Exception, match=f"{change['detail']}; nothing was recorded"):
        measure_lab.measure(ONE, ("without", "with"), 1, again=True)
    assert evidence() == before


def full_disk(name, path):
    raise OSError(28, "No space left on device")


def test_full_disk(evidence, monkeypatch):
    before = evidence()
    monkeypatch.setattr(measure_matrix, "child", lambda *_: [row()])
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        measure_patch()
    with pytest.raises(SystemExit, match="No space left on device; its content is as it was"):
        evidence_file.run(lambda: lab_evidence.save(ONE, {"set": ONE.name}))
    assert evidence() == before


def test_interrupted_tool_is_one_line():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="interrupted; run it again to measure the rest"):
        evidence_file.run(interrupt)


def test_generated_files_are_replaced_whole(monkeypatch):
    files = (catalogue.DECLARATIONS, matrix_file.MATRIX, findings.FINDINGS)
    before = [file.read_text() for file in files]
    monkeypatch.setattr(os, "replace", full_disk)
    monkeypatch.setattr(findings, "findings", lambda evidence: "cut")
    for write in (declarations.write, matrix_file.write, lambda: findings.write([])):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert [file.read_text() for file in files] == before


def test_lab_of_which_another_wrote_the_evidence(evidence, monkeypatch):
    def cells(lab, part):
        lab_evidence.save(ONE, MEASURED | {"without": {"llama": {"merge": "g"}}})
        return [GREEN]

    monkeypatch.setattr(measure_lab.Lab, "cells", cells)
    monkeypatch.setattr(measure_lab.runner, "device", lambda python: "cpu")
    with pytest.raises(SystemExit, match="changed meanwhile; nothing was recorded"):
        measure_lab.measure(ONE, ("without", "with"), 1, again=True, likely=None)
    assert lab_evidence.evidence_of(ONE)["without"] == {"llama": {"merge": "g"}}


def test_two_at_once_lose_nothing(evidence, monkeypatch):
    read = patch_evidence.read
    monkeypatch.setattr(patch_evidence, "read", lambda folder: (read(folder), time.sleep(0.01))[0])
    monkeypatch.setattr(measure_matrix, "child", lambda *_: [row()])
    sets = [release_sets.ReleaseSet(f"mlx-lm 1.{n}", "2026-01-01", {}) for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: measure_matrix.Measuring().run([one], 1), sets))
    assert all(patch_evidence.is_measured(PATCH, one.name) for one in sets)
    assert {one.name for one in sets} < {*patch_evidence.read_versions()}


@pytest.fixture
def daily(monkeypatch, tmp_path):
    """Copies of the files that the daily workflow changes; returns the one with the sets."""
    for name, path in (("SETS", new_releases.SETS), ("WATCHED", new_releases.WATCHED)):
        (tmp_path / path.name).write_text(path.read_text())
        monkeypatch.setattr(new_releases, name, tmp_path / path.name)
    monkeypatch.setattr(release_sets, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["new_releases.py"])
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    monkeypatch.setattr(new_releases, "list_releases", lambda name: ["0.0.1"])
    return new_releases.SETS


def release_one(name):
    return ["999"] if name == "mlx-lm" else ["0.0.1"]


def test_two_at_once_add_a_release_once(daily, monkeypatch):
    monkeypatch.setattr(
        new_releases, "list_releases", lambda name: (time.sleep(0.01), release_one(name))[1]
    )
    before = release_sets.load()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: new_releases.main(), range(4)))
    assert release_sets.load().keys() == {*before, "mlx-lm 999"}


@pytest.mark.parametrize("fault", [full_disk, lambda name, path: os.kill(os.getpid(), 9)])
def test_daily_workflow_that_ends_early(daily, monkeypatch, fault):
    """On a full disk, or killed while it writes, it leaves the release sets as they were."""
    before = daily.read_text()
    monkeypatch.setattr(new_releases, "list_releases", release_one)
    monkeypatch.setattr(os, "replace", fault)
    child = os.fork()
    if not child:
        try:
            evidence_file.run(new_releases.main)
        except SystemExit as error:
            os._exit(3 if "No space left on device" in str(error) else 4)
        finally:
            os._exit(5)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (3 if fault is full_disk else -9)
    assert daily.read_text() == before


@pytest.mark.parametrize("today", ["2020-01-01", "2999-01-01"])
def test_clock(daily, monkeypatch, today):
    before = daily.read_text()
    date = SimpleNamespace(today=lambda: datetime.date.fromisoformat(today))
    monkeypatch.setattr(new_releases, "datetime", SimpleNamespace(date=date))
    if today < "2026":
        with pytest.raises(SystemExit, match="the clock is at 2020-01-01"):
            new_releases.main()
    else:
        new_releases.main()  # nothing new: no set gets a date
    assert daily.read_text() == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("date = ", "Invalid value"),
        ("", "no release set"),
        ("a = 3", "a: not a table of a release"),
        ('["mlx-lm"]\ndate = 2026-01-01', "mlx-lm: not a table of a release"),
        ('["mlx-lm 1"]', "mlx-lm 1: date is missing"),
        ('["mlx-lm 1"]\ndate = "soon"', "mlx-lm 1: date is not a date: 'soon'"),
        ('["mlx-lm 1"]\ndat = 2026-01-01', "mlx-lm 1: unknown key 'dat'; choose from: date, "),
        ('["mlx-lm 1"]\ndate = 2026-01-01\npins = { mlx = 0.3 }', "pins.mlx is not a version"),
    ],
)
def test_broken_release_sets(monkeypatch, tmp_path, text, why):
    (tmp_path / "sets.toml").write_text(text)
    monkeypatch.setattr(release_sets, "HERE", tmp_path)
    with pytest.raises(SystemExit) as raised:
        release_sets.load("sets.toml")
    assert "sets.toml: " in str(raised.value)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_summary_of_truncated_versions(evidence, monkeypatch):
    patch_evidence.VERSIONS.write_text('{"mlx-lm 0.2": {')
    monkeypatch.setattr(sys, "argv", ["new_releases.py", "--summary"])
    monkeypatch.setattr(new_releases, "list_committed", set)
    with pytest.raises(SystemExit, match=r"versions\.json: Expecting .* restore it with git"):
        new_releases.main()


@pytest.mark.parametrize(
    "printed",
    ["WARNING: Retrying\nERROR: No matching\ndistribution", "error: Request\n  cause: no"],
)
def test_index_that_is_unreachable(monkeypatch, tmp_path, printed):
    done = SimpleNamespace(returncode=1, stdout="", stderr=printed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    for call in (
        lambda: new_releases.list_releases("mlx-lm"),
        lambda: release_sets.make(ONE, tmp_path),
    ):
        with pytest.raises(SystemExit, match="check the network") as raised:
            call()
        assert "\n" not in str(raised.value)
        assert "WARNING" not in str(raised.value)


@pytest.mark.parametrize(
    ("because", "kind"),
    [
        ("mlx-lm==1 depends on mlx>=2 and you require mlx==1", release_sets.Unsolvable),
        ("there is no version of mlx==9", SystemExit),
        ("mlx was not found in the package registry", SystemExit),
    ],
)
def test_index_that_lacks_a_package(monkeypatch, tmp_path, because, kind):
    stderr = f"error: No solution found\n  cause: Because {because}"
    done = SimpleNamespace(returncode=1, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SystemExit) as raised:
        release_sets.make(ONE, tmp_path)
    assert type(raised.value) is kind


@pytest.mark.parametrize("there", [True, False])
def test_taking_from_a_folder_without_checkouts(evidence, monkeypatch, tmp_path, there):
    monkeypatch.setattr("matrix_file.write", lambda: None)
    folder = tmp_path / "taken"
    if there:
        folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["measure_matrix.py", "--write", "--take", str(folder)])
    monkeypatch.setattr("declarations.write", lambda: None)
    monkeypatch.setattr("declarations.check_probes", lambda: None)
    with pytest.raises(SystemExit, match="taken: no folder with checkouts that measured"):
        evidence_file.run(measure_matrix.main)


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("measure_matrix", ["--patch", "no-such-patch"], "no patch 'no-such-patch'"),
        ("measure_lab", ["--set", "vllm-mlx 0.6.0"], "vllm-mlx 0.6.0: it has no models"),
        ("measure_lab", ["--model", "no-such-model"], "no family 'no-such-model'"),
        ("new_releases", ["--sumary"], "--summary"),
        ("run_sessions", ["no-such-tag"], "no session of noxfile.py has the tag no-such-tag"),
    ],
)
def test_tool_that_has_nothing_to_do(evidence, monkeypatch, tool, arguments, why):
    monkeypatch.setattr("matrix_file.write", lambda: None)
    monkeypatch.setattr("findings.write", lambda evidence: None)
    monkeypatch.setattr("measure_lab.mark_code", lambda: None)
    monkeypatch.setattr(sys, "argv", [tool, *arguments])
    monkeypatch.setattr("declarations.write", lambda: None)
    monkeypatch.setattr("run_sessions.sessions", lambda tags: [])  # nox is not installed here
    with pytest.raises(SystemExit, match=why):
        evidence_file.run(importlib.import_module(tool).main)


@pytest.mark.parametrize("tool", ["measure_matrix", "measure_lab", "measure_variants"])
def test_unknown_set_is_refused(monkeypatch, tool):
    monkeypatch.setattr(sys, "argv", [tool, "--set", "mlx-lm 9"])
    monkeypatch.setattr("declarations.write", lambda: None)
    with pytest.raises(SystemExit, match="no release set 'mlx-lm 9'"):
        importlib.import_module(tool).main()


def test_taking_what_was_measured_again(evidence, tmp_path):
    """In the workflow each job has a checkout with old evidence of the other jobs' parts."""
    other = json.loads(evidence()["evidence.json"])
    (result,) = other["a-patch"]["mlx-lm"]["results"][PLACE]
    result["releases"] = ["0.1"]
    new = {**result, "without": "green", "releases": ["0.2"]}
    other["a-patch"]["mlx-lm"]["results"][PLACE].append(new)
    for name, content in (("1", other), ("2", json.loads(evidence()["evidence.json"]))):
        folder = tmp_path / "taken" / name
        folder.mkdir(parents=True)
        (folder / "evidence.json").write_text(json.dumps(content))
    patch_evidence.take(tmp_path / "taken")
    cells = {one["set"]: one["patches"]["a-patch"][PLACE] for one in patch_evidence.load()}
    assert [cells[name]["without"] for name in ("mlx-lm 0.1", "mlx-lm 0.2")] == ["red", "green"]


def test_cut_short_artifact_is_refused(evidence, tmp_path):
    before = evidence()
    folder = tmp_path / "taken" / "1"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_text(before["evidence.json"][:-20])
    with pytest.raises(SystemExit, match="not evidence of a patch"):
        patch_evidence.take(tmp_path / "taken")
    assert evidence() == before


def test_killed_tool_leaves_whole_files(tmp_path):
    code = (
        "import sys; from pathlib import Path; from mlx_patches.core.files import write\n"
        "while True: write(Path(sys.argv[1]), '[' + '1,' * 400_000 + '1]'); print(flush=True)\n"
    )
    file = tmp_path / "evidence.json"
    with subprocess.Popen([sys.executable, "-c", code, file], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.readline()
        process.kill()
    assert len(json.loads(file.read_text())) == 400_001
