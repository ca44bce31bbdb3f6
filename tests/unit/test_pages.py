"""The pages: links lead somewhere, they stay short, and they count the same patches."""

import re
from pathlib import Path

import pytest

from mlx_patches.auditing.listing import list_patches
from mlx_patches.patches import catalogue

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def words(*pages: Path) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def test_pages_are_short():
    assert words(ROOT / "README.md") < 1300
    assert words(*ROOT.glob("docs/*.md")) < 13_000


def test_pages_agree_on_patch_count():
    """One patch per defect, as in `mlx-patches list`. Smaller numbers are of one release."""
    count = len(catalogue.builtin().ids())
    faults_of = {
        page.name: {int(n) for n in re.findall(r"(\d{3,}) (?:patches|defects)", page.read_text())}
        for page in PAGES
    }
    assert {name: found for name, found in faults_of.items() if found} == {
        "README.md": {count},
        "catalogue.md": {count},
    }
    assert count == sum(not one.origin for one in list_patches())
