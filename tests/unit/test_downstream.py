"""Other projects' tests without and with the patches: what counts as a difference."""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "downstream"))

import compare
import pytest
import release_sets
import run

from mlx_patches.patches import catalogue

SUITE = """
import os, unittest, pytest
def test_passes(): pass
def test_fails(): assert 0
def test_dies(): os._exit(9)
@pytest.fixture
def broken(): assert 0
def test_errs(broken): pass
@pytest.mark.skip
def test_skips(): pass
@pytest.mark.skipif(True, reason="not here")
def test_lifted(): pass
@pytest.mark.xfail
def test_xfails(): assert 0
@pytest.mark.xfail
def test_xpasses(): pass
class TestTearDown(unittest.TestCase):
    def tearDown(self): assert 0
    def test_it(self): pass
"""


def test_equal_runs_do_not_differ():
    outcomes = {"a": "passed", "b": "failed", "c": "skipped"}
    assert compare.differences(outcomes, dict(reversed(outcomes.items()))) == {}


def test_missing_test_differs():
    assert compare.differences({"a": "passed", "b": "passed"}, {"b": "passed", "c": "passed"}) == {
        "a": ("passed", "missing"),
        "c": ("missing", "passed"),
    }


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("passed", "failed"), compare.BROKEN),
        (("passed", "error"), compare.BROKEN),
        (("passed", "crashed"), compare.BROKEN),
        (("passed", "missing"), compare.BROKEN),
        (("skipped", "failed"), compare.BROKEN),
        (("xfailed", "failed"), compare.BROKEN),
        (("failed", "passed"), compare.REPAIRED),
        (("missing", "passed"), compare.REPAIRED),
        (("xfailed", "xpassed"), compare.OTHER),
        (("passed", "skipped"), compare.OTHER),
        (("failed", "crashed"), compare.OTHER),
    ],
)
def test_kind_of_difference(pair, kind):
    assert compare.kind(pair) == kind


def test_equal_runs_are_not_repeated():
    assert compare.settle({}, pytest.fail) == ({}, {})


PASSED, FAILED = {"f::a": "passed"}, {"f::a": "failed"}
GOOD, BAD, REVERSED = (PASSED, PASSED), (PASSED, FAILED), (FAILED, PASSED)
IN_FILE = (PASSED | {"f::b": "passed"}, FAILED | {"f::b": "failed"})


@pytest.mark.parametrize(
    ("pairs", "stands", "last"),
    [
        ([BAD] * 5, True, "f::a"),
        ([GOOD, BAD, GOOD, BAD, GOOD], True, "f::a"),
        ([REVERSED, REVERSED, BAD, BAD, GOOD, GOOD, GOOD], False, "f"),  # on both sides
        ([GOOD, BAD, *[GOOD] * 5], False, "f"),  # a race
        ([*[GOOD] * 5, IN_FILE, IN_FILE], True, "f"),  # it needs the other tests of its file
    ],
)
def test_difference_stands_or_is_chance(pairs, stands, last):
    asked, left = [], list(pairs)
    difference = {"f::a": ("passed", "failed")}
    found = compare.settle(
        {"f::a": ("passed", "error")} if IN_FILE in pairs else difference,
        lambda tests: (asked.append(list(tests)), left.pop(0))[1],
    )
    assert found == ((difference, {}) if stands else ({}, difference))
    assert asked[0] == ["f::a"] and asked[-1] == [last] and not left


def test_table_counts_both_runs():
    lines = compare.table({"a": "passed", "b": "passed"}, {"a": "passed", "b": "failed"})
    assert [line.split() for line in lines.splitlines()] == [
        ["without", "with"],
        ["passed", "2", "1"],
        ["failed", "0", "1"],
    ]


def test_plugin_records_outcomes_and_resumes(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_unreadable.py").write_text("import no_such_module")
    (tmp_path / "test_script.py").write_text("import sys; sys.exit(0)")
    (tmp_path / "pytest.ini").touch()
    file = tmp_path / "outcomes"
    file.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": str(run.HERE / "plugin"),
        "DOWNSTREAM_OUTCOMES": str(file),
        "DOWNSTREAM_LIFT": json.dumps(["not here"]),
    }
    command = [sys.executable, "-m", "pytest", "-p", "downstream_outcomes", "-q"]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    first = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    assert first.returncode == 9
    assert run.read(file) is None
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    seen = run.read(file)
    assert seen.statuses == []
    assert seen.outcomes == {
        "test_unreadable.py": "error",
        "test_script.py": "error",
        "test_suite.py::test_passes": "passed",
        "test_suite.py::test_fails": "failed",
        "test_suite.py::test_dies": "crashed",
        "test_suite.py::test_errs": "error",
        "test_suite.py::test_skips": "skipped",
        "test_suite.py::test_lifted": "passed",
        "test_suite.py::test_xfails": "xfailed",
        "test_suite.py::test_xpasses": "xpassed",
        "test_suite.py::TestTearDown::test_it": "failed",
    }


def test_silent_run_is_killed(tmp_path):
    file = tmp_path / "outcomes"
    file.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    run.watch(process, file, 0.05)
    assert process.returncode == -9


def test_only_unlisted_broken_tests_are_an_error(capsys):
    recipe = run.Recipe("one", "tests", differs={"a": run.Known("a-patch", "because")})
    broken = ("passed", "failed")
    assert run.report(recipe, {"a": broken, "b": broken[::-1]}, {"c": broken}) == []
    assert run.report(recipe, {"a": broken, "b": broken}, {}) == ["b"]
    assert "a: passed without, failed with (listed: a-patch: because)" in capsys.readouterr().out


def test_listed_tests_must_fail_while_their_patch_is_applied():
    known = run.Known("a-patch", "because")
    recipe = run.Recipe("one", "tests", differs=dict.fromkeys(("a", "b", "c"), known))
    without = run.Run({"a": "passed", "b": "failed"}, [])
    applied = run.Run({"a": "passed", "b": "failed"}, [{"patch": "a-patch", "status": "applied"}])
    assert run.find_gone(recipe, (without, applied), []) == ["a"]
    assert run.find_gone(recipe, (without, applied), ["a"]) == []
    retired = run.Run(applied.outcomes, [{"patch": "a-patch", "status": "fixed-upstream"}])
    assert run.find_gone(recipe, (without, retired), []) == []


def fake_suites(monkeypatch, tmp_path, outcomes, *statuses):
    """Run a recipe with two tests; ``statuses`` are those of the patch at its targets."""
    rows = [
        {"patch": "a-patch", "status": status, "target": "m:f", "reason": "why"}
        for status in statuses
    ]
    monkeypatch.setattr(run, "PLACE", tmp_path)
    monkeypatch.setattr(run.release_sets, "make", lambda *_, **__: tmp_path / "python")
    monkeypatch.setattr(run, "do", lambda *_: None)
    monkeypatch.setattr(run, "fetch", lambda *_: tmp_path)
    monkeypatch.setattr(run, "make_stand_ins", lambda *_: None)
    monkeypatch.setattr(
        run,
        "suite",
        lambda _recipe, _python, _source, _tests, patched: run.Run(
            outcomes if patched else {"a": "passed"}, rows if patched else []
        ),
    )
    recipe = next(iter(run.load().values()))
    (tmp_path / run.release_sets.load()[recipe.name].slug).mkdir()
    return run.judge(run.Recipe(recipe.name, "tests", differs={"a": run.Known("a-patch", "why")}))


@pytest.mark.parametrize(
    ("outcome", "statuses", "reasons"),
    [
        ("failed", ["applied"], []),
        ("failed", ["applied", "failed"], ["failed patches: a-patch"]),
        ("passed", ["applied"], ["1 listed tests pass with the patches"]),
    ],
)
def test_reasons_why_a_recipe_fails(outcome, statuses, reasons, monkeypatch, tmp_path):
    assert fake_suites(monkeypatch, tmp_path, {"a": outcome}, *statuses) == reasons


def test_recipes_name_known_sets_and_patches():
    recipes = run.load()
    assert set(recipes) <= set(release_sets.load())
    ids = {patch.id for patch in catalogue.builtin()}
    for recipe in recipes.values():
        for known in recipe.differs.values():
            assert known.patch in ids and known.why
