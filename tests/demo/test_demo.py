"""The output of `make demo`, in its environment: the nox session `readme`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_shows_demo_and_verdicts():
    demo = [sys.executable, str(ROOT / "tools" / "demo.py")]
    done = subprocess.run(demo, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 30
    assert max(map(len, done.stdout.splitlines())) <= 80
    table, verdicts = done.stdout.split("\n\nAudit before: ")
    block = f"in mlx-vlm 0.5.0 -->\n```\n{table}\n```\n<!-- end of demo -->"
    assert block in (ROOT / "README.md").read_text(), table
    before, after = verdicts.split("\nAudit after: ")
    assert before.startswith("idefics3 gives wrong text in a batch here (mlx-vlm 0.5.0)")
    assert after.startswith("idefics3 is repaired here (mlx-vlm 0.5.0)")
