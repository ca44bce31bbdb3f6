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


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    start(*sys.argv[1:])
    import declarations  # imports every patch

    declarations.write()  # else `mlx-patches probe` does not know the patch


def read(name: str) -> str:
    return (Path(__file__).parent / "new_patch_files" / f"{name}.txt").read_text()


def start(patch_id: str, area: str, root: Path = ROOT) -> None:
    """Write the files of a new patch, or none of them."""
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
        parent / name / "patch.py": read("patch"),
        parent / name / "probe.py": read("probe"),
        root / "tests" / "patches" / f"test_{name}.py": read("test"),
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


if __name__ == "__main__":
    main()
