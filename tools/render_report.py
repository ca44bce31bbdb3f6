"""Writes the report page from the lab's evidence, and optionally a picture of it.

    python tools/render_report.py report.html
    python tools/render_report.py report.html --audit audit.json      (of mlx-patches audit --json)
    python tools/render_report.py report.html --picture docs/report.png

The picture needs an installed Chromium or Chrome.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lab_evidence

from mlx_patches import MlxPatchesError, report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PICTURE = "1280,860"
SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the page to write")
    parser.add_argument(
        "--audit", type=Path, help="the output of mlx-patches audit --json, shown as its own row"
    )
    parser.add_argument(
        "--picture", type=Path, help="also write a screenshot of the page to this PNG file"
    )
    options = parser.parse_args()
    try:
        audit = json.loads(options.audit.read_bytes()) if options.audit else None
        report.save(options.file, lab_evidence.load(), audit)
        if options.picture:
            take_picture(options.file, options.picture)
    except (MlxPatchesError, OSError, ValueError) as error:
        sys.exit(f"render_report: {error}")


def browser() -> str | None:
    """The path of an installed Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def take_picture(page: Path, picture: Path) -> None:
    found = browser()
    if found is None:
        raise MlxPatchesError(f"no browser for a picture: install one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as profile:
        command = [found, "--headless", "--no-sandbox", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={PICTURE}"]
        # The page unpacks its data after it has loaded.
        command += ["--virtual-time-budget=10000", f"--screenshot={picture.resolve()}"]
        command += [page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)


if __name__ == "__main__":
    main()
