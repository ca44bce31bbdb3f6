"""The pages in docs/ say what the code has."""

from __future__ import annotations

import json
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


def keys(schema: object) -> set[str]:
    """Every key that a schema names, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(keys, schema))
    if not isinstance(schema, dict):
        return set()
    own = {*schema.get("properties", {}), *schema.get("required", [])}
    return own.union(*map(keys, schema.values()))


def test_every_key_of_the_matrix_is_described():
    schema = json.loads((ROOT / "mlx_patches" / "compat_matrix.schema.json").read_text())
    page = (DOCS / "matrix.md").read_text()
    described = {name.partition("` in")[0] for name, *_ in rows(page)}
    assert described == keys(schema)
    assert "`affected` in `bodies`" in page  # the one that has two meanings
