"""Find the decoder families of an installed release in its source, without importing it."""

import ast
from pathlib import Path

from ..core.distributions import source_file
from ..core.packages import package_of
from . import Family

# Names defined by every module or package of a language model.
_MARK = {"mlx-lm": {"Model", "ModelArgs"}, "mlx-vlm": {"LanguageModel"}}


def families(distribution: str) -> list[Family]:
    """Every family of a distribution; empty if it is not installed."""
    folder = models_folder(distribution)
    if folder is None:
        return []
    entries = [one for one in sorted(folder.iterdir()) if not one.name.startswith(("_", "."))]
    found = [one for one in entries if _has_all(_files(one), _MARK[distribution])]
    return [Family(distribution, one.stem) for one in found]


def _has_all(files: list[Path], names: set[str]) -> bool:
    """Whether the files together define every name at top level; stops once all are found."""
    left = set(names)
    for file in files:
        left -= _find_bound(file, left)
        if not left:
            return True
    return False


def source_files(family: Family) -> list[Path]:
    folder = models_folder(family.distribution)
    if folder is None:
        return []
    module = folder / f"{family.name}.py"
    return _files(module if module.exists() else folder / family.name)


def _files(entry: Path) -> list[Path]:
    return [entry] if entry.suffix == ".py" else sorted(entry.glob("*.py"))


def models_folder(distribution: str) -> Path | None:
    root = source_file(package_of(distribution))
    return root.parent / "models" if root else None


def _find_bound(file: Path, wanted: set[str]) -> set[str]:
    """The wanted names that a file imports or defines as a class at top level."""
    try:
        source = file.read_bytes()
        if not any(name.encode() in source for name in wanted):
            return set()
        tree = ast.parse(source)
    except (OSError, SyntaxError):
        return set()
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names & wanted
