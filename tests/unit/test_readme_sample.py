"""The README's sample is what the audit prints in an environment that the tool makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import readme_sample


@pytest.fixture
def readme(monkeypatch, tmp_path):
    """A README, and an environment whose audit says a text."""
    file = tmp_path / "README.md"
    monkeypatch.setattr(readme_sample, "README", file)
    monkeypatch.setattr(readme_sample.release_sets, "make", lambda _, folder: folder / "python")

    def says(python: Path, *_, codes):
        assert codes == (1,)
        return f"gemma4 gives\n\\1 in {python.parent}\n"

    monkeypatch.setattr(readme_sample.release_sets, "run", says)
    return file


def test_only_the_sample_is_new(readme):
    block = "```\n$ mlx-patches audit --model gemma4   # here\n{}\n```\nand\n```\nmore\n```\n"
    readme.write_text(block.format("old\n\nlines"))
    readme_sample.main()
    assert readme.read_text() == block.format("gemma4 gives\n\\1 in /path/to/env")


def test_a_readme_without_sample_gets_one_line(readme):
    readme.write_text("# Nothing\n")
    with pytest.raises(SystemExit, match=r"^README\.md: no sample that begins with '\$ "):
        readme_sample.main()
    assert readme.read_text() == "# Nothing\n"
