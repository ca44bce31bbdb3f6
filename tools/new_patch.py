"""Starts a patch: a folder with patch and probe, and a test.

    python tools/new_patch.py ID AREA      as `make patch ID=my-patch AREA=caches` does

The new files fail the tests until every TODO is gone. ``AREA`` is a folder of mlx_patches/patches.
`make measure` and `make write` find the patch there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")

PATCH = '''"""TODO: product or models, symptom, when.

Why
    TODO
How
    TODO
Upstream
    TODO
Retire when
    TODO
"""

from typing import Any

from ....core.verbs import Patch, after


def repair_cache(cache: Any, /) -> None:
    """TODO: what changes, and the verb: before, argument, result, after, by_rows or wrap."""
    raise NotImplementedError


PATCH = Patch(
    id="{id}",
    severity="wrong-text",
    targets=after("mlx_lm.models.cache:KVCache.trim", repair_cache),
)
'''
PROBE = '''"""TODO: what it does with the release."""

from ....probes.kit import Result, Target


def probe(target: Target) -> Result:
    """Red if TODO."""
    raise NotImplementedError
'''
TEST = '''"""TODO: what the patch guarantees, with inputs other than the probe's; and a mutant."""

from mlx_patches.patches.{area}.{name} import patch


def test_TODO(ungated):
    ungated(patch.PATCH)
    raise NotImplementedError


def break_patch(monkeypatch):
    raise NotImplementedError("TODO: break the patch, so that its probe is red")


MUTANTS = {"{id}": break_patch}
'''
MUTANT = '"{id}": {},  # TODO: a name of the patch\'s module, with a value that turns the probe red'


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    start(*sys.argv[1:])


def start(patch_id: str, area: str, root: Path = ROOT) -> None:
    """Write the files of a new patch, or none of them.

    Raises:
        SystemExit: the id, the folder or a file is invalid; nothing was written.
    """
    name = patch_id.replace("-", "_")
    parent = root / "mlx_patches" / "patches" / area
    if not _ID.fullmatch(patch_id):
        sys.exit(
            f"{patch_id!r} is not a patch id: use two or more lower-case words, as in offset-alias"
        )
    if not area or not (parent / "__init__.py").exists():
        areas = sorted(one.parent.name for one in parent.parent.glob("[a-z]*/__init__.py"))
        sys.exit(f"no folder {area!r} in mlx_patches/patches; there are {', '.join(areas)}")
    files = {
        parent / name / "__init__.py": "",
        parent / name / "patch.py": PATCH,
        parent / name / "probe.py": PROBE,
        root / "tests" / "patches" / f"test_{name}.py": TEST,
    }
    taken = [str(file.relative_to(root)) for file in files if file.exists()]
    if f'"{patch_id}": ' in (parent.parent / "declarations.json").read_text():
        taken.append("a patch of this id")
    if taken:
        sys.exit(f"{patch_id}: {' and '.join(taken)} already exists")
    for file, text in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            text.replace("{id}", patch_id).replace("{name}", name).replace("{area}", area)
        )
    print("\n".join(str(file.relative_to(root)) for file in files))
    print(f"\nFill in each TODO, then: make measure PATCH={patch_id}, make known-files, make test")


def add_line(file: Path, start: str, end: str, line: str) -> None:
    """Add a last line to a table of a file."""
    text = file.read_text()
    place = text.index(end, text.index(start))
    file.write_text(f"{text[:place]}\n    {line}{text[place:]}")


if __name__ == "__main__":
    main()
