"""The pages in docs/ say what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from mlx_patches._ledger import Outcome, Status

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = "".join(path.read_text() for path in sorted((ROOT / "mlx_patches").glob("*.py")))
STATUSES = (DOCS / "statuses.md").read_text()


def rows(page: str) -> list[list[str]]:
    """The cells of every table row whose first cell is code."""
    lines = re.findall(r"^\| (`.*) \|$", page, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in line.split(" | ")] for line in lines]


def test_every_status_is_in_the_table_and_has_a_section():
    assert [name for name, *_ in rows(STATUSES)] == [str(status) for status in Status]
    assert re.findall(r"^## (.*)$", STATUSES, re.MULTILINE) == [str(status) for status in Status]


def test_the_table_says_which_are_findings():
    for name, finding, _ in rows(STATUSES):
        outcome = Outcome("patch", "distribution", "target", Status(name), "reason")
        assert finding == ("yes" if outcome.finding else "no"), name


def test_the_reasons_on_the_page_are_those_that_are_given():
    said = [text.replace("\n", " ") for text in re.findall(r'"([^"]+)"', STATUSES)]
    assert len(said) > 10
    words = SOURCES.replace("{_environment.DISABLE}", "MLX_PATCHES_DISABLE")
    assert [text for text in said if text not in words] == []
