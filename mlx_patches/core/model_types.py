"""Model types: the installed modules that implement one."""

from functools import cache
from pathlib import Path

from .distributions import source_file
from .packages import MODEL_PACKAGES

_MAX_NAME = 100
# Types of transformers that no release maps, and the family; ``config-names`` lets it load.
_RENAMED = {"ernie4_5_vl_moe": "ernie4_5_moe_vl"}


def implementations(model_type: str) -> dict[str, str]:
    """Installed distribution to the name of its module that implements a model type."""
    found = {}
    for package, distribution in MODEL_PACKAGES.items():
        # mlx-vlm reads the type in lower case, such as GOT-OCR's.
        own = model_type.lower() if distribution == "mlx-vlm" else model_type
        name = remapping(package).get(own, _RENAMED.get(own, own))
        # Some modules have a hyphen in their name, such as lfm2-vl.
        plain = name.replace("-", "_")
        if plain.isidentifier() and not plain.startswith("__") and len(plain) < _MAX_NAME:
            for one in (plain, name):  # the second if both exist
                if (file := source_file(f"{package}.{one}")) and not is_helper(file):
                    found[distribution] = one
    return found


@cache
def is_helper(file: Path) -> bool:
    """Whether a module beside the models, such as ``cache``, has code but no model."""
    import re  # not at start-up

    if file.name == "__init__.py":
        return False
    try:
        source = file.read_bytes()
    except OSError:
        return False
    model = rb"^(?:class Model\b|Model *=|from [^\n]* import (?:\([^)]*|[^\n(]*)\bModel\b)"
    return bool(re.search(rb"^(?:class|def) ", source, re.M) and not re.search(model, source, re.M))


@cache
def remapping(package: str) -> dict[str, str]:
    """A package's ``MODEL_REMAPPING``, read from its source; empty if it has none."""
    import ast  # not at start-up

    path = source_file(f"{package.partition('.')[0]}.utils")
    try:
        tree = ast.parse(path.read_bytes()) if path else ast.Module([], [])
    except (OSError, SyntaxError):
        return {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "MODEL_REMAPPING" for t in node.targets
        ):
            try:
                return dict(ast.literal_eval(node.value))
            except (ValueError, TypeError):
                return {}
    return {}
