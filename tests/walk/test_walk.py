"""Runs every condition of this environment, and checks that each condition can fail."""

from __future__ import annotations

from collections import Counter

import pytest

from .condition import KINDS, Condition, kind_here, sentence_is_plain
from .conditions import CONDITIONS
from .runner import Walk

# The number of conditions that a newcomer tried in five environments.
TRIED = 216
HERE = kind_here()


def chosen() -> list[pytest.param]:
    return [
        pytest.param(one, id=one.says, marks=[pytest.mark.slow] if one.slow else [])
        for one in CONDITIONS
        if HERE in one.where
    ]


@pytest.mark.parametrize("condition", chosen())
def test_the_walk(tmp_path, condition: Condition):
    problems = list(Walk(tmp_path, condition).problems())
    if problems:
        pytest.fail("\n".join([condition.says, *problems]), pytrace=False)


def test_there_are_as_many_conditions_as_a_newcomer_tried():
    assert len(CONDITIONS) >= TRIED
    assert {kind for one in CONDITIONS for kind in one.where} == set(KINDS)


def test_every_condition_is_a_sentence_of_its_own_and_can_fail():
    twice = [says for says, count in Counter(one.says for one in CONDITIONS).items() if count > 1]
    assert not twice
    for one in CONDITIONS:
        assert sentence_is_plain(one.says), one.says
        assert one.steps and all(step.checked for step in one.steps), one.says
        assert set(one.where) <= set(KINDS) and one.where, one.says
