"""A pytest plugin: writes what becomes of each test at once, for a run that may die.

The file that ``DOWNSTREAM_OUTCOMES`` names gets a line a test: ``crashed`` as it starts, its
outcome as it ends. Tests that the file has already are left out, so that a run that died goes
on behind the test that it died of. The last line says what the patches came to.
``DOWNSTREAM_LIFT`` lists the reasons of skip marks that are lifted.
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
    except SystemExit as exits:  # as the file is imported: it would end the run
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
    # Setup, call, teardown and subtests report one by one.
    _seen[report.nodeid] = max(outcome, _seen.get(report.nodeid, "passed"), key=_SEVERITY.index)


def pytest_runtest_logfinish(nodeid):
    _write(id=nodeid, outcome=_seen.pop(nodeid))


def pytest_sessionfinish():
    mlx_patches = sys.modules.get("mlx_patches")
    outcomes = mlx_patches.status() if mlx_patches else ()
    _write(statuses=[outcome.as_dict() for outcome in outcomes])
