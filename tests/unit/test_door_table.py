"""The table of attacks that reach through servers, from their recorded outcomes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import door_table
from door_table import Outcome

from mlx_patches.patches import catalogue

CLOSED = Outcome("code ran", "refused", ["a"])


@pytest.mark.parametrize(
    ("rows", "cell"),
    [
        ([], "not measured"),
        ([Outcome("ignored", "ignored")], "not reachable"),
        ([Outcome("ignored", "ignored"), Outcome("refused", "refused")], "refused by the server"),
        ([CLOSED, Outcome("read", "refused", ["b"])], "closed: `a`, `b`"),
        # A patch closes nothing if the server also refuses the request without it.
        ([CLOSED, Outcome("refused", "refused", ["b"])], "closed: `a`"),
        ([CLOSED, Outcome("read", "read")], "**open** (read)"),
        # An attack that succeeds only with the patches counts, too.
        ([Outcome("refused", "fetched")], "**open** (fetched)"),
    ],
)
def test_verdict(rows, cell):
    assert door_table.verdict({str(index): row for index, row in enumerate(rows)}) == cell


def test_recorded_patches_exist():
    ids = {patch.id for patch in catalogue.builtin()}
    records = door_table.load()
    assert records
    for doors in records.values():
        assert list(doors) == list(door_table.DOORS)
        assert {id_ for rows in doors.values() for row in rows.values() for id_ in row.by} <= ids
