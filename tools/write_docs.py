"""Writes the generated parts of the documents; `--check` only says whether they are current."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- generated: tools/write_docs.py -->\n"
END = "<!-- end -->\n"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = before + BEGIN + table() + END + after
    if "--check" in sys.argv[1:]:
        sys.exit(0 if current == text else "README.md is stale: run python tools/write_docs.py")
    README.write_text(current)


def table() -> str:
    """The table of patches and the releases that they repair."""
    from mlx_patches import _registry
    from mlx_patches._matrix import CompatMatrix, builtin_path

    matrix = CompatMatrix.load(builtin_path())
    head = ("patch", "without it", *matrix.releases)
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for patch in _registry.builtin():
        cells = []
        for distribution in matrix.releases:
            rule = matrix.rule(patch.id, distribution)
            cells.append(f"`{rule.affected}`" if rule else "")
        rows.append(f"| `{patch.id}` | {patch.summary} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
