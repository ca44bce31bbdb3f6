"""Whether a module's code has run to its end. Standard library only: loaded at start-up."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it; importing typing costs 5 ms
if TYPE_CHECKING:
    from types import ModuleType

# The ids of modules whose code has ended and whose import hooks are running: the import system
# clears ``_initializing`` only after the hooks.
ended: set[int] = set()


def complete(module: ModuleType) -> bool:
    """False while the module's code is still running."""
    initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return not initializing or id(module) in ended


def loaded(name: str) -> ModuleType | None:
    """The module of this name if it is imported and complete; else None."""
    module = sys.modules.get(name)
    # Lazy loaders and test doubles put other things into sys.modules.
    return module if isinstance(module, type(sys)) and complete(module) else None
