"""Runs the conditions of this environment."""

import pytest

from . import commands, next_release, processes
from .condition import Condition, kind_here
from .runner import Walk

CONDITIONS = [*commands.CONDITIONS, *processes.CONDITIONS, *next_release.CONDITIONS]
HERE = kind_here()


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.slow else [])
        for one in CONDITIONS
        if HERE in one.where
    ],
)
def test_condition(tmp_path, condition: Condition):
    problems = list(Walk(tmp_path, condition).problems())
    if problems:
        pytest.fail("\n".join([condition.name, *problems]), pytrace=False)
