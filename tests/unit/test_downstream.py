"""Other projects' tests without and with the patches: what counts as a difference."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "downstream"))

import compare
import pytest


def runs(*pairs):
    """An ``again`` that gives one pair of runs after the other, and notes what it was asked for."""
    asked, left = [], list(pairs)

    def again(tests):
        asked.append(list(tests))
        return left.pop(0)

    return again, asked


def test_equal_runs_do_not_differ():
    outcomes = {"a": "passed", "b": "failed", "c": "skipped"}
    assert compare.differences(outcomes, dict(reversed(outcomes.items()))) == {}


def test_a_test_that_one_run_does_not_have_differs():
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
def test_a_difference_is_named_by_the_side_that_it_speaks_for(pair, kind):
    assert compare.kind(pair) == kind


def test_nothing_is_run_again_where_nothing_differs():
    again, asked = runs()
    assert compare.settle({}, again) == ({}, {})
    assert asked == []


def test_a_difference_stands_that_is_seen_again():
    same = ({"f::a": "passed"}, {"f::a": "failed"})
    again, asked = runs(same, same, same)
    assert compare.settle({"f::a": ("passed", "failed")}, again) == (
        {"f::a": ("passed", "failed")},
        {},
    )
    assert asked == [["f::a"]] * 3


def test_a_difference_stands_that_is_seen_now_and_then_on_one_side_only():
    good = ({"f::a": "passed"}, {"f::a": "passed"})
    again, _ = runs(good, ({"f::a": "passed"}, {"f::a": "failed"}), good)
    found, chance = compare.settle({"f::a": ("passed", "failed")}, again)
    assert (found, chance) == ({"f::a": ("passed", "failed")}, {})


def test_what_fails_on_both_sides_now_and_then_is_chance():
    one, other = ({"f::a": "failed"}, {"f::a": "passed"}), ({"f::a": "passed"}, {"f::a": "failed"})
    good = ({"f::a": "passed"}, {"f::a": "passed"})
    again, asked = runs(one, other, good, good)
    assert compare.settle({"f::a": ("passed", "failed")}, again) == (
        {},
        {"f::a": ("passed", "failed")},
    )
    assert asked[-1] == ["f"]


def test_a_difference_stands_that_needs_the_other_tests_of_its_file():
    good = ({"f::a": "passed"}, {"f::a": "passed"})
    in_file = ({"f::a": "passed", "f::b": "passed"}, {"f::a": "failed", "f::b": "failed"})
    again, asked = runs(good, good, good, in_file)
    found, chance = compare.settle({"f::a": ("passed", "error")}, again)
    assert (found, chance) == ({"f::a": ("passed", "failed")}, {})
    assert asked[-1] == ["f"]


def test_the_table_counts_both_runs():
    lines = compare.table({"a": "passed", "b": "passed"}, {"a": "passed", "b": "failed"})
    assert [line.split() for line in lines.splitlines()] == [
        ["without", "with"],
        ["passed", "2", "1"],
        ["failed", "0", "1"],
    ]
