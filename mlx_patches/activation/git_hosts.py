"""Patches of hosts that are installed only from git.

These hosts have no release to measure, so the matrix has no rules for their patches. The patches
are added, like those of other packages, if their host is installed; ``NOTE`` is appended to each
reason that the audit reports for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.contribution import Contribution

NOTE = "not verified against a release"
_MODULES = {"omlx": ("omlx.boundary_snapshots.patch",)}


def contributions(installed: Callable[[str], object]) -> Iterator[Contribution]:
    for host, modules in _MODULES.items():
        if installed(host) is not None:
            for name in modules:
                found = importlib.import_module(f"mlx_patches.patches.{name}").CONTRIBUTION
                yield found._replace(note=NOTE)
