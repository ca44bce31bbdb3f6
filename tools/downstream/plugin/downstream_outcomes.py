"""A pytest plugin: writes each test's outcome at once, because the process may crash.

It appends to the file ``DOWNSTREAM_OUTCOMES``: ``crashed`` when a test starts, its outcome when it
ends. Tests that are already in the file are deselected, so a run after a crash continues behind
the test that crashed. The last line holds the patches' statuses.
``DOWNSTREAM_LIFT`` lists the reasons of skip marks to remove.
"""

import json
import os
import sys

import pytest

_SEVERITY = ("passed", "xfailed", "xpassed", "skipped", "failed", "error")
_seen = {}


def _write(**line):
    with open(os.environ["DOWNSTREAM_OUTCOMES"], "a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    try:
        return (yield)
    except SystemExit as exits:  # raised while the test file is imported; it would end the run
        return pytest.CollectReport(collector.nodeid, "failed", f"exits: {exits}", [])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    with open(os.environ["DOWNSTREAM_OUTCOMES"]) as file:
        done = {json.loads(line).get("id") for line in file}
    lifted = json.loads(os.environ["DOWNSTREAM_LIFT"])
    for node in {node for item in items for node in item.listchain()}:
        node.own_markers[:] = [
            mark for mark in node.own_markers if mark.kwargs.get("reason") not in lifted
        ]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report):
    if not report.passed:
        _write(id=report.nodeid, outcome="error" if report.failed else "skipped")


def pytest_runtest_logstart(nodeid):
    _write(id=nodeid, outcome="crashed")


def pytest_runtest_logreport(report):
    outcome = report.outcome
    if report.failed and report.when != "call":
        outcome = "error"
    elif hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    # Setup, call, teardown and subtests each report; the worst outcome counts.
    _seen[report.nodeid] = max(outcome, _seen.get(report.nodeid, "passed"), key=_SEVERITY.index)


def pytest_runtest_logfinish(nodeid):
    _write(id=nodeid, outcome=_seen.pop(nodeid))


def pytest_sessionfinish():
    mlx_patches = sys.modules.get("mlx_patches")
    outcomes = mlx_patches.status() if mlx_patches else ()
    _write(statuses=[outcome.as_dict() for outcome in outcomes])
