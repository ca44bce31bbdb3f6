"""Builds the wheel twice, and checks that the same source produces the same bytes.

    python tools/check_wheel.py [FOLDER]

If the bytes agree, the wheel is copied to the folder.

The two copies of the source differ in things that must not matter: the path, the files' times and
modes, and the umask. ``SOURCE_DATE_EPOCH`` is passed on; without it the build backend uses its own
fixed date.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        first = build_wheel(
            copy_tree(Path(place, "one"), umask=0o022, time=1_600_000_000), umask=0o022
        )
        other = build_wheel(
            copy_tree(Path(place, "another"), umask=0o077, time=1_700_000_000), umask=0o077
        )
        digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (first, other)]
        if digests[0] == digests[1] and sys.argv[1:]:
            kept = Path(sys.argv[1])
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(first, kept)
    for digest in digests:
        print(f"{digest}  {first.name}")
    sys.exit(digests[0] != digests[1] and "the two wheels differ")


def copy_tree(to: Path, umask: int, time: float) -> Path:
    """Copy the files that git tracks, with these file times and modes."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        file = to / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, file)
        file.chmod(0o666 & ~umask)
        os.utime(file, (time, time))
    return to


def build_wheel(source: Path, umask: int) -> Path:
    out = source.with_name(f"{source.name}-wheel")
    subprocess.run(
        [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", out, source],
        check=True,
        umask=umask,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


if __name__ == "__main__":
    main()
