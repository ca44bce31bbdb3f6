"""Writes the README's sample of ``mlx-patches audit``: its output in one release set.

    python tools/readme_sample.py

The set's environment is kept beside those of the tests. Needs uv.
"""

from __future__ import annotations

import re

import release_sets
from release_sets import ROOT

README = ROOT / "README.md"
SET, MODEL = "mlx-vlm 0.4.3", "gemma4"
COMMAND = f"$ mlx-patches audit {MODEL} "
SAMPLE = re.compile(rf"({re.escape(COMMAND)}.*?\n).*?(?=\n```)", re.DOTALL)


def main() -> None:
    folder = ROOT / ".nox" / "readme-sample"
    python = release_sets.make(release_sets.find(SET), folder)
    text = README.read_text()
    output = release_sets.run(python, "-m", "mlx_patches", "audit", MODEL, codes=(1,))
    sample = output.replace(str(folder), "/path/to/env").strip()
    if not SAMPLE.search(text):
        raise SystemExit(f"README.md: no sample that begins with '{COMMAND}'")
    written = SAMPLE.sub(lambda found: found[1] + sample, text)
    if written != text:
        README.write_text(written)
        print("README.md: the sample is new")


if __name__ == "__main__":
    main()
