"""Loads the patches and hosts that other packages declare by entry point.

An entry point in the group ``mlx_patches.patches`` is a ``Contribution``: a patch. One in the group
``mlx_patches.hosts`` is a ``Host``, which describes how a server's processes are started. Entry
points of a distribution that ``MLX_PATCHES_DISABLE`` names are not loaded.

Patches are searched for at start-up, for which ``importlib_metadata`` is too slow; hosts only by
the commands.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from ..core.distributions import canonical, line_of, source_file
from ..core.errors import is_interrupt
from ..core.failures import describe
from ..core.record import Record
from .settings import ALL

if TYPE_CHECKING:
    from ..core.contribution import Contribution, Host

logger = logging.getLogger("mlx_patches")

PATCHES = "mlx_patches.patches"
HOSTS = "mlx_patches.hosts"
INFO = ".dist-info"


class Declared(Record):
    """An entry point of a distribution."""

    distribution: str
    point: Any

    @property
    def module(self) -> str:
        return str(self.point.value).partition("[")[0].partition(":")[0].strip()

    def skip(self, error: BaseException) -> None:
        """Log why the entry point is not used; a user's KeyboardInterrupt is raised again."""
        if is_interrupt(error):
            raise error
        logger.warning(
            "mlx_patches: entry point %s of %s was skipped: %s: %s (%s)",
            *(self.point.name, self.distribution, self.point.value),
            *(describe(error), _locate(error, self.point)),
        )


def contributions(blocked: Collection[str]) -> list[tuple[Declared, Contribution]]:
    """The patches that other packages declare, each after its entry point."""
    points = [
        Declared(one.name, point)
        for one in declaring(PATCHES)
        for point in one.entry_points.select(group=PATCHES)
    ]
    if not points:  # the usual case: start-up does not import the types
        return []
    from ..core.contribution import Contribution

    return list(_load(points, Contribution, blocked))


def hosts(blocked: Collection[str] = ()) -> dict[str, Host]:
    """The hosts that declare themselves, by name. Reads all metadata: not for start-up."""
    from ..core.contribution import Host

    return {host.name: host for _, host in _load(_find_installed(HOSTS), Host, blocked)}


def find_blocked(names: Collection[str]) -> list[str]:
    """The distributions that declare patches and are switched off. Not for start-up."""
    declaring = dict.fromkeys(one.distribution for one in _find_installed(PATCHES))
    return [name for name in declaring if is_blocked(name, names)]


def is_blocked(distribution: str, blocked: Collection[str]) -> bool:
    """Whether the user switched off a distribution's contributions, in any spelling of its name."""
    return ALL in blocked or canonical(distribution) in map(canonical, blocked)


def is_known(name: str) -> bool:
    """Whether a contributing distribution, or one of its entry points, has this name."""
    return any(
        canonical(name) in map(canonical, (one.name, *one.entry_points.select(group=group).names))
        for group in (PATCHES, HOSTS)
        for one in declaring(group)
    )


def declaring(group: str) -> list[importlib.metadata.Distribution]:
    """The distributions with entry points in a group, for each name the first on ``sys.path``.

    Searches each ``entry_points.txt`` for the group's heading, since parsing them all costs 5 ms.
    """
    heading = f"[{group}]".encode()
    folders = [folder for place in dict.fromkeys(sys.path) for folder in _metadata_folders(place)]
    declared = {folder for folder in folders if heading in _entry_points(folder)}
    if not declared:
        return []
    first: dict[str, str] = {}
    for folder in folders:
        name = canonical(os.path.basename(folder).removesuffix(INFO).rpartition("-")[0])
        # The leftovers of an uninstall have no METADATA, and must not hide an installed one.
        if name not in first or not os.path.exists(os.path.join(first[name], "METADATA")):
            first[name] = folder
    found = [folder for folder in first.values() if folder in declared]
    return [importlib.metadata.PathDistribution(Path(folder)) for folder in found]


def _metadata_folders(place: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(place or ".") if name.endswith(INFO))
    except OSError:
        return []
    return [os.path.join(place, name) for name in names]


def _entry_points(folder: str) -> bytes:
    """The text of a distribution's entry points; empty if it declares none."""
    try:
        with open(os.path.join(folder, "entry_points.txt"), "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _find_installed(group: str) -> Iterator[Declared]:
    import importlib_metadata

    for point in importlib_metadata.entry_points(group=group):
        # An uninstall's leftovers have no METADATA.
        if point.dist is not None and point.dist.read_text("METADATA"):
            yield Declared(point.dist.name, point)


def _load(
    points: Iterable[Declared], kind: type[Any], blocked: Collection[str]
) -> Iterator[tuple[Declared, Any]]:
    """Each entry point and its object; those that fail to load are logged."""
    for declared in points:
        if is_blocked(declared.distribution, blocked):
            continue
        try:
            found = declared.point.load()
            if not isinstance(found, kind):
                raise TypeError(f"it is not a {kind.__name__}")
            found.check()
        except BaseException as error:
            declared.skip(error)
            continue
        yield declared, found


def _locate(error: BaseException, point: Any) -> str:
    """The file and the line of an entry point's failure.

    It is the innermost line of its package; else that which assigns the object; else that of
    ``entry_points.txt``.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    module, _, name = point.value.partition("[")[0].replace(" ", "").partition(":")
    package = module.partition(".")[0]
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    if places:
        return places[-1]
    file = source_file(module) if name else None
    if file and (line := line_of(file, name)):
        return f"{file}:{line}"
    file = Path(str(getattr(point.dist, "_path", point.dist.name)), "entry_points.txt")
    return f"{file}:{line_of(file, point.name) or 1}"
