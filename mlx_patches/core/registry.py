"""All patches by id.

A table of declarations lists every patch's place and targets, so that start-up can decide about all
of them and import only the modules of the patches that it applies.
"""

import functools
import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import MlxPatchesError
from .patch import Patch, Target

logger = logging.getLogger("mlx_patches")

_PATCHES = Path(__file__).parents[1] / "patches"
# The keys of a row that are not fields of a patch, or have a different form.
_OURS = ("place", "distribution", "targets")
_IMPORTING = threading.RLock()


def _import_module(module: str) -> ModuleType:
    """Import a patch's module.

    The package of a built-in patch is an empty ``__init__.py``, which is not imported: that, and
    listing its folder, would take a tenth of start-up.
    """
    name = module.removeprefix("mlx_patches.patches.")
    file = f"{_PATCHES}/{name.replace('.', '/')}.py"
    if name == module or not os.path.exists(file):
        return importlib.import_module(module)
    with _IMPORTING:
        if module not in sys.modules:
            spec = importlib.util.spec_from_file_location(module, file)
            assert spec and spec.loader
            sys.modules[module] = made = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(made)
            except BaseException:
                del sys.modules[module]
                raise
        return sys.modules[module]


class Registry:
    """Patches by id. ``get`` imports the patch's module on first use; ``declared`` does not.

    ``rows``: each patch's declaration, written by tools/declarations.py. One that has only a
    ``place``, ``module`` or ``module:NAME``, is imported whenever it is declared.
    """

    def __init__(self, rows: Mapping[str, Mapping[str, Any]] | None = None):
        self._rows = rows or {}
        self._patches: dict[str, Patch] = {}
        self._declared: dict[str, Patch] = {}
        self._origins: dict[str, str] = {}
        self._ranks: dict[str, int] = {}

    def add(self, patch: Patch, origin: str = "") -> None:
        """Add a patch; ValueError if its id is taken."""
        if patch.id in self:
            raise ValueError(f"patch {patch.id!r} is registered already")
        self._patches[patch.id] = patch
        self._origins[patch.id] = origin

    def today(self, name: str) -> str:
        """The current id for a former one, with a warning; any other name unchanged."""
        if not name or name in self:
            return name
        for patch in self.each_declared():
            if name == patch.formerly:
                logger.warning("mlx_patches: the patch %s was renamed to %s", name, patch.id)
                return patch.id
        return name

    def get(self, patch_id: str) -> Patch:
        patch_id = self.today(patch_id)
        if patch_id not in self:
            raise MlxPatchesError(
                f"no patch {patch_id!r}{self.hint(patch_id)} (mlx-patches list shows all patches)"
            )
        if patch_id not in self._patches:
            module, _, name = self._rows[patch_id]["place"].partition(":")
            patch = getattr(_import_module(module), name or "PATCH")
            assert patch.id == patch_id, (patch.id, patch_id)
            patch = patch._replace(module=module)
            summary = patch.summary or self._rows[patch_id].get("summary") or patch.headline
            self._patches[patch_id] = patch._replace(summary=summary)
        return self._patches[patch_id]

    def find_declared(self, patch_id: str) -> Patch:
        """Return a patch from the table, without importing its module.

        It has no ``doc``, and its targets have no factory and no check: see ``complete``.
        """
        patch_id = self.today(patch_id)
        if patch_id in self._declared:
            return self._declared[patch_id]
        row = self._rows.get(patch_id, {})
        if patch_id in self._patches or "targets" not in row:
            return self.get(patch_id)
        targets = tuple(map(_read_target, row["targets"]))
        fields = {name: value for name, value in row.items() if name not in _OURS}
        module = row["place"].partition(":")[0]
        patch = Patch(patch_id, module=module, targets=targets, **fields)
        self._declared[patch_id] = patch
        return patch

    def each_declared(self) -> Iterator[Patch]:
        """Every patch, as ``find_declared`` returns it, in order of application."""
        return map(self.find_declared, self.ids())

    def complete(self, patch_id: str, target: Target) -> Target:
        """A declared target with its factory and its check; imports the patch's module."""
        if target.factory is not _incomplete:
            return target
        for one in self.get(patch_id).targets:
            if one.path == target.path:
                return one
        raise MlxPatchesError(
            f"{patch_id} has no target {target.path}: declarations.json is stale; run make write"
        )

    @functools.cached_property
    def wrong_solo(self) -> dict[str, list[Patch]]:
        """Model types that are wrong even for a single request, to the patches that repair them."""
        found: dict[str, list[Patch]] = {}
        for patch in self.each_declared():
            for family in patch.wrong_solo.split():
                found.setdefault(family, []).append(patch)
        return found

    def in_profiles(self, names: Collection[str]) -> frozenset[str]:
        if not names:  # start-up avoids reading all patches
            return frozenset()
        wanted = set(names)
        return frozenset(p.id for p in self.each_declared() if wanted & set(p.profiles))

    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._rows, *self._patches)))

    def rank(self, patch_id: str) -> int:
        """A patch's place in the order of application; the last place for an unknown id."""
        if patch_id not in self._ranks:
            self._ranks = {id_: index for index, id_ in enumerate(self.ids())}
        return self._ranks.get(patch_id, len(self._ranks))

    def hint(self, name: str) -> str:
        return did_you_mean(name, self.ids())

    def distribution(self, patch_id: str) -> str | None:
        """The only distribution that one of our patches changes; None for several or others."""
        return self._rows.get(patch_id, {}).get("distribution")

    def area(self, patch_id: str) -> str:
        """The folder below ``patches`` of one of our patches; empty for other packages' patches."""
        place: str = self._rows.get(patch_id, {}).get("place", "")
        return place.partition(".patches.")[2].partition(".")[0]

    def origin(self, patch_id: str) -> str:
        """The distribution that contributed a patch; empty for our own."""
        return self._origins.get(patch_id, "")

    def __contains__(self, patch_id: object) -> bool:
        return patch_id in self._rows or patch_id in self._patches

    def __iter__(self) -> Iterator[Patch]:
        return map(self.get, self.ids())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, as the end of a sentence; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _read_target(line: str) -> Target:
    """A target of the table, which has one text for each: lists would slow down ``gc.collect``."""
    distribution, module, name, flags, *body = line.split()
    adds, supports, none = (flag == "1" for flag in flags)
    return Target(distribution, module, name, _incomplete, tuple(body), adds, supports, none)


def _incomplete(original: Any) -> Any:
    """The factory of a target from the table."""
    raise MlxPatchesError("the target comes from the table: Registry.complete completes it")
