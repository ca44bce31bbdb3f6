"""Model types: the installed modules that implement one."""

from functools import cache

from .distributions import source_file
from .packages import MODEL_PACKAGES

_MAX_NAME = 100


def implementations(model_type: str) -> dict[str, str]:
    """Installed distribution to the name of its module that implements a model type."""
    found = {}
    for package, distribution in MODEL_PACKAGES.items():
        name = remapping(package).get(model_type, model_type)
        # Some modules have a hyphen in their name, such as lfm2-vl.
        plain = name.replace("-", "_")
        if plain.isidentifier() and not plain.startswith("__") and len(plain) < _MAX_NAME:
            for one in (plain, name):  # the second if both exist
                if source_file(f"{package}.{one}"):
                    found[distribution] = one
    return found


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
