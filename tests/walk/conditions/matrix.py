"""Broken compat matrices: the error is one line that names file, line and key."""

from __future__ import annotations

from pathlib import Path

from ..condition import EMPTY, Condition, Content, python, sampled
from ..things import folder

MATRIX = (Path(__file__).parents[3] / "compat_matrix.yaml").read_text()
TOOLS = Path(__file__).parents[3] / "tools"
# What `make write` does with a matrix that somebody edited.
LOAD = f"""
import pathlib, sys
sys.path.insert(0, {str(TOOLS)!r})
import matrix_file
try:
    matrix_file.compile_matrix(pathlib.Path("matrix.yaml"))
except matrix_file.MlxPatchesError as error:
    sys.exit(f"Error: {{error}}")
"""


def broken(says: str, content: Content | None, error: str) -> Condition:
    """A matrix that cannot be compiled."""
    return python(
        f"a matrix {says} is refused in a line",
        LOAD,
        code=1,
        error=error,
        where=[EMPTY],
        files={} if content is None else {"matrix.yaml": content},
    )


CONDITIONS = [
    *sampled(
        3,
        [
            broken("that is not there", None, "matrix.yaml: cannot be read"),
            broken("that is a folder", folder, "matrix.yaml: cannot be read"),
            broken("that is empty", "", "matrix.yaml: "),
            broken("that is binary", b"\xff\xfe\x00", "matrix.yaml: "),
            broken("that is not YAML", "schema: [1\n", "matrix.yaml.*: "),
            broken("that is a list", "- 1\n", "matrix.yaml"),
            broken(
                "of another schema",
                MATRIX.replace("schema: 1", "schema: 99", 1),
                "matrix.yaml.*schema",
            ),
            broken(
                "with a key that nobody knows", MATRIX + "\nnonsense: 1\n", "matrix.yaml.*nonsense"
            ),
            broken(
                "with a range that is none",
                MATRIX.replace("affected: ", "affected: 'soon' #", 1),
                "matrix.yaml.*soon",
            ),
            broken("nested 10,000 deep", "[" * 10_000, "matrix.yaml"),
            broken(
                "of a million aliases",
                "a: &a [x,x,x,x,x,x,x,x,x]\n"
                + "".join(
                    f"{n}: &{n} [{','.join(['*' + p] * 9)}]\n"
                    for p, n in zip("abcdefg", "bcdefgh", strict=True)
                ),
                "matrix.yaml",
            ),
        ],
    ),
]
