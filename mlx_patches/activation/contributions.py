"""What other packages declare by entry point: patches, and hosts.

A package that repairs a release itself declares its patch in the group ``mlx_patches.patches``,
a server how its processes are started in the group ``mlx_patches.hosts``. The entry point is a
``Contribution`` or a ``Host``. Nothing is imported of a distribution that
``MLX_PATCHES_DISABLE`` names.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core.patch import Patch
from .settings import ALL

logger = logging.getLogger("mlx_patches")

PATCHES = "mlx_patches.patches"
HOSTS = "mlx_patches.hosts"
INFO = ".dist-info"


class Contribution(NamedTuple):
    """A patch of another package.

    Args:
        patch: as ours are; its module's docstring says why, how, upstream, retire when.
        affected: distribution to the releases that have the defect, as a version specifier.
        note: added to whatever the audit says of it.
        fixed: distribution to the releases that repaired it themselves, likewise.
    """

    patch: Patch
    affected: Mapping[str, str]
    note: str = ""
    fixed: Mapping[str, str] = MappingProxyType({})


class Host(NamedTuple):
    """A server that runs models of mlx-lm or mlx-vlm in its processes.

    Args:
        name: its distribution.
        scripts: the console scripts that start it.
        modules: the top-level packages that ``python -m`` starts it from.
    """

    name: str
    scripts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def contributions(blocked: Collection[str] = ()) -> list[tuple[str, Contribution]]:
    """(distribution, contribution) of every package that declares patches."""
    return list(declared(PATCHES, Contribution, blocked))


def hosts(blocked: Collection[str] = ()) -> dict[str, Host]:
    """The hosts that declare themselves, by name."""
    return {host.name: host for _, host in declared(HOSTS, Host, blocked)}


def declared(
    group: str, kind: type[Any], blocked: Collection[str] = ()
) -> Iterator[tuple[str, Any]]:
    """(distribution, object) of each entry point of a group; what does not load is logged."""
    for distribution in declaring(group):
        name = distribution.name
        for point in distribution.entry_points.select(group=group):
            if is_blocked(name, blocked):
                continue
            try:
                found = point.load()
                if not isinstance(found, kind):
                    raise TypeError(f"it is no {kind.__name__}")
            except (Exception, SystemExit) as error:
                logger.warning("mlx_patches: %s of %s is left out: %s", point.name, name, error)
                continue
            yield name, found


def is_blocked(distribution: str, blocked: Collection[str]) -> bool:
    """Whether the user switched a distribution's contributions off, however it is spelled."""
    return ALL in blocked or plain(distribution) in map(plain, blocked)


def blocked(names: Collection[str]) -> list[str]:
    """The distributions that declare patches, and are switched off by name or all together."""
    return [one.name for one in declaring(PATCHES) if is_blocked(one.name, names)]


def is_known(name: str) -> bool:
    """Whether a name is that of a distribution that contributes, or of its entry point."""
    return any(
        plain(name) in map(plain, (one.name, *one.entry_points.select(group=group).names))
        for group in (PATCHES, HOSTS)
        for one in declaring(group)
    )


def plain(name: str) -> str:
    """A distribution's name in the one spelling that all others mean."""
    return re.sub("[-_.]+", "-", name).lower()


def declaring(group: str) -> list[importlib.metadata.Distribution]:
    """The distributions that have entry points in a group; of a name the first on ``sys.path``.

    Looks for the group's name in each file first: reading them all as metadata costs 5 ms.
    """
    heading = f"[{group}]".encode()
    found: list[importlib.metadata.Distribution] = []
    first: dict[str, str] = {}
    for place in dict.fromkeys(sys.path):
        try:
            folders = [name for name in os.listdir(place or ".") if name.endswith(INFO)]
        except OSError:
            continue
        for folder in sorted(folders):
            entry = os.path.join(place, folder)
            name = folder.removesuffix(INFO).rpartition("-")[0].lower()
            name = name.replace("-", "_").replace(".", "_")
            # What is left of an uninstalled one has no METADATA, and hides nothing.
            if name in first and os.path.exists(os.path.join(first[name], "METADATA")):
                continue
            first[name] = entry
            try:
                with open(os.path.join(entry, "entry_points.txt"), "rb", buffering=0) as file:
                    content = file.read()
            except OSError:
                continue
            if heading in content:
                found.append(importlib.metadata.PathDistribution(Path(entry)))
    return found
