"""The objects that packages declare by entry point: a patch or a host."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .patch import Patch, Target


class Contribution(NamedTuple):
    """A patch of another package.

    Args:
        patch: the patch. Its module's docstring has the sections Why, How, Upstream and Retire
            when.
        affected: distribution to the releases with the defect, as a version specifier.
        note: appended to the reason of each outcome.
        fixed: distribution to the releases that fixed the defect, as a version specifier.
    """

    patch: Patch
    affected: Mapping[str, str]
    note: str = ""
    fixed: Mapping[str, str] = MappingProxyType({})

    def check(self) -> None:
        """Raise an error if the id or the summary cannot be shown, or a target is incomplete."""
        id_, summary, targets = self.patch[:3]
        if not re.fullmatch(r"'[a-z0-9][a-z0-9._-]*'", repr(id_)):
            raise ValueError(f"the id is {id_!r}; use a to z, digits and hyphens")
        if not str(summary).isprintable():
            raise ValueError(f"{id_}: the summary is {summary!r}; use one printable line")
        known = isinstance(targets, tuple) and all(isinstance(one, Target) for one in targets)
        if not (known and targets and all(callable(one.factory) for one in targets)):
            raise TypeError(f"{id_}: targets is not a tuple of Targets with functions as factories")
        try:
            hash(self.patch)
        except TypeError as error:
            raise TypeError(f"{id_}: {error} in a field; use tuples") from None
        if strange := {one.distribution for one in targets} - self.affected.keys():
            raise ValueError(f"{id_}: affected has no range for {min(strange)}, which it changes")


class Host(NamedTuple):
    """A server that runs mlx-lm or mlx-vlm models in its processes.

    Args:
        name: its distribution.
        scripts: the console scripts that start it.
        modules: the top-level packages that ``python -m`` starts it from.
    """

    name: str
    scripts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise TypeError if a field has another type, since a string is a tuple of letters."""
        tuples = isinstance(self.scripts, tuple) and isinstance(self.modules, tuple)
        names = (self.name, *self.scripts, *self.modules) if tuples else (None,)
        if not all(isinstance(one, str) and one for one in names):
            raise TypeError("a Host has a name, a tuple of scripts and a tuple of modules")
