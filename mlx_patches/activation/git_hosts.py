"""Our patches of hosts that are installed from git alone.

There is no release to measure, so the matrix has no word on them. They are added like those of
other packages, where their host is installed, and whatever the audit says of them says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.contribution import Contribution

NOTE = "not verified against a release"
_MODULES = {"omlx": ("omlx.boundary_snapshots",)}


def contributions(installed: Callable[[str], object]) -> Iterator[Contribution]:
    """The patches of the hosts of which ``installed`` finds something."""
    for host, modules in _MODULES.items():
        if installed(host) is not None:
            for name in modules:
                found = importlib.import_module(f"mlx_patches.patches.{name}").CONTRIBUTION
                yield found._replace(note=NOTE)
