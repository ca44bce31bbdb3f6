"""Writes the report page from the lab's evidence, cell by cell.

    python tools/render_report.py report.html
    python tools/render_report.py report.html --audit audit.json      (of mlx-patches audit --json)
    python tools/render_report.py report.html --picture docs/report.png

The picture is of the page itself, by an installed Chromium or Chrome.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure_lab

from mlx_patches import report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PICTURE = "1100,720"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the page to write")
    parser.add_argument("--audit", type=Path, help="the environment's own row")
    parser.add_argument("--picture", type=Path, help="a PNG to write as well")
    options = parser.parse_args()
    audit = json.loads(options.audit.read_text()) if options.audit else None
    options.file.write_text(report.page(report.content(measured(), audit)), "utf-8")
    if options.picture:
        take_picture(options.file, options.picture)


def measured() -> list[dict[str, Any]]:
    """The lab's evidence as the page takes it: each set with its families' fates."""
    return [{**one, "families": measure_lab.family_fates(one)} for one in measure_lab.load()]


def browser() -> str | None:
    """An installed browser of the Chromium kind."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def take_picture(page: Path, picture: Path) -> None:
    found = browser()
    if found is None:
        sys.exit(f"no browser for a picture: install one of {', '.join(BROWSERS)}")
    command = [found, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={PICTURE}"]
    command += [f"--screenshot={picture.resolve()}", page.resolve().as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
