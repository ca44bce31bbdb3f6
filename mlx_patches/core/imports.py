"""Checks whether a module's import is complete. Standard library only: loaded at start-up."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it; importing typing costs 5 ms
if TYPE_CHECKING:
    from types import ModuleType

# The ids of modules whose code has run and whose import hooks are running: the import system
# clears ``_initializing`` only after the hooks.
ended: set[int] = set()
# The modules started as ``__main__``, and whether they run under their own name instead.
as_main: dict[str, bool] = {}


def complete(module: ModuleType) -> bool:
    """False while the module's code is still running."""
    initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return not initializing or id(module) in ended


def is_imported(name: str) -> bool:
    """Whether a module's import is complete, including its hooks."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return isinstance(module, type(sys)) and not getattr(spec, "_initializing", False)


def runs_in_copy(name: str) -> bool:
    """Whether a module runs as ``__main__`` in a copy of its code, which no patch reaches."""
    if as_main.get(name):
        return False
    return name == name_of_main() or (name in as_main and not is_imported(name))


def name_of_main() -> str:
    """The name of the module that runs as ``__main__``; empty for a script."""
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")


def find_module(name: str) -> ModuleType | None:
    """The module of this name if it is imported and complete; else None."""
    module = sys.modules.get(name)
    # Lazy loaders and test doubles put other things into sys.modules.
    return module if isinstance(module, type(sys)) and complete(module) else None
