"""All patches by id.

A table of declarations lists every patch's targets, so that start-up can decide all of them and
import only the modules of patches that it puts in effect.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import MlxPatchesError
from .files import packaged
from .patch import Patch, Target
from .record import Record

logger = logging.getLogger("mlx_patches")


class Entry(Record):
    """Where a patch is declared, ``module`` or ``module:NAME``, and its only distribution."""

    place: str
    distribution: str = ""


class Registry:
    """Patches by id. ``get`` imports the patch's module on first use; ``declared`` does not.

    Args:
        entries: where each patch is declared.
        table: the JSON file of their declarations, as returned by ``describe``.
    """

    def __init__(self, entries: Mapping[str, Entry] | None = None, table: Path | None = None):
        self._entries = dict(entries or {})
        self._table = table
        self._patches: dict[str, Patch] = {}
        self._declared: dict[str, Patch] = {}
        self._origins: dict[str, str] = {}
        self._ranks: dict[str, int] = {}

    def add(self, patch: Patch, origin: str = "") -> None:
        """Add a patch.

        Raises:
            ValueError: the id is taken.
        """
        if patch.id in self:
            raise ValueError(f"patch {patch.id!r} is registered already")
        self._patches[patch.id] = patch
        self._origins[patch.id] = origin

    def today(self, name: str) -> str:
        """The id of today for a former one, with a warning; any other name unchanged."""
        if not name or name in self:
            return name
        for patch in self.each_declared():
            if name == patch.formerly:
                logger.warning("mlx_patches: the patch %s was renamed to %s", name, patch.id)
                return patch.id
        return name

    def get(self, patch_id: str) -> Patch:
        """Return a patch.

        Raises:
            MlxPatchesError: there is none of this id.
        """
        patch_id = self.today(patch_id)
        if patch_id not in self:
            raise MlxPatchesError(
                f"no patch {patch_id!r}{self.hint(patch_id)} (mlx-patches list shows all patches)"
            )
        if patch_id not in self._patches:
            module, _, name = self._entries[patch_id].place.partition(":")
            patch = getattr(importlib.import_module(module), name or "PATCH")
            assert patch.id == patch_id, (patch.id, patch_id)
            self._patches[patch_id] = patch._replace(module=module)
        return self._patches[patch_id]

    def declared(self, patch_id: str) -> Patch:
        """Return a patch from the table, without importing its module.

        It has no ``doc``, and its targets have no factory and no check: see ``complete``.

        Raises:
            MlxPatchesError: there is none of this id.
        """
        patch_id = self.today(patch_id)
        if patch_id in self._declared:
            return self._declared[patch_id]
        row = None if patch_id in self._patches else self._declarations.get(patch_id)
        if row is None or patch_id not in self._entries:
            return self.get(patch_id)
        targets = tuple(
            Target(distribution, module, name, _incomplete, tuple(body), *flags)
            for distribution, module, name, body, *flags in row["targets"]
        )
        module = self._entries[patch_id].place.partition(":")[0]
        patch = Patch(patch_id, module=module, **{**row, "targets": targets})
        self._declared[patch_id] = patch
        return patch

    def each_declared(self) -> Iterator[Patch]:
        """Every patch, as ``declared`` returns it, in order of application."""
        return map(self.declared, self.ids())

    @functools.cached_property
    def _declarations(self) -> dict[str, Any]:
        """The table; empty if it cannot be read, so that every module is imported."""
        try:
            rows = json.loads(packaged(self._table)) if self._table else {}
        except (OSError, ValueError):
            return {}
        return rows if isinstance(rows, dict) else {}

    def complete(self, patch_id: str, target: Target) -> Target:
        """A declared target with its factory and its check; imports the patch's module.

        Raises:
            MlxPatchesError: the patch has no such target.
        """
        if target.factory is not _incomplete:
            return target
        for one in self.get(patch_id).targets:
            if one.path == target.path:
                return one
        raise MlxPatchesError(f"{patch_id} has no target {target.path}: {self._table} is stale")

    @functools.cached_property
    def wrong_alone(self) -> dict[str, list[Patch]]:
        """The models that are wrong even for a single request, to the patches that repair them."""
        found: dict[str, list[Patch]] = {}
        for patch in self.each_declared():
            for family in patch.wrong_alone.split():
                found.setdefault(family, []).append(patch)
        return found

    def in_profiles(self, names: Collection[str]) -> frozenset[str]:
        """The ids of the patches that name one of these profiles."""
        if not names:  # then start-up need not know all patches
            return frozenset()
        wanted = set(names)
        return frozenset(p.id for p in self.each_declared() if wanted & set(p.profiles))

    def ids(self) -> tuple[str, ...]:
        """Every id, in order of application."""
        return tuple(dict.fromkeys((*self._entries, *self._patches)))

    def rank(self, patch_id: str) -> int:
        """A patch's place in the order of application; the last place for an unknown id."""
        if patch_id not in self._ranks:
            self._ranks = {id_: index for index, id_ in enumerate(self.ids())}
        return self._ranks.get(patch_id, len(self._ranks))

    def hint(self, name: str) -> str:
        """A suggestion for a mistyped id; see ``did_you_mean``."""
        return did_you_mean(name, self.ids())

    def distribution(self, patch_id: str) -> str | None:
        """The only distribution that one of our patches changes; None for several or others."""
        entry = self._entries.get(patch_id)
        return entry.distribution or None if entry else None

    def area(self, patch_id: str) -> str:
        """The folder below ``patches`` of one of our patches; empty for other packages' patches."""
        entry = self._entries.get(patch_id)
        inside = entry.place.partition(".patches.")[2] if entry else ""
        return inside.partition(".")[0]

    def origin(self, patch_id: str) -> str:
        """The distribution that contributed a patch; empty for our own."""
        return self._origins.get(patch_id, "")

    def describe(self) -> dict[str, Any]:
        """The declarations of all patches; imports them."""
        return {patch.id: _described(patch) for patch in self}

    def __contains__(self, patch_id: object) -> bool:
        return patch_id in self._entries or patch_id in self._patches

    def __iter__(self) -> Iterator[Patch]:
        return map(self.get, self.ids())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, as the end of a sentence; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _described(patch: Patch) -> dict[str, Any]:
    """The fields of a patch that are not the default, but for those that the catalogue knows.

    Its targets are without factory and check.
    """
    known, default = ("id", "targets", "module", "doc"), Patch._field_defaults
    fields = patch._asdict().items()
    own = {k: v for k, v in fields if k not in known and v != default.get(k)}
    return {**own, "targets": [[*target[:3], *target[4:8]] for target in patch.targets]}


def _incomplete(original: Any) -> Any:
    """The factory of a target from the table."""
    raise MlxPatchesError("the target comes from the table: Registry.complete completes it")
