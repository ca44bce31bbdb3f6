"""Finds the built-in patches in their folders, and writes the table of their declarations."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from release_sets import ROOT

from mlx_patches.core.files import write as write_whole
from mlx_patches.core.patch import Patch
from mlx_patches.core.registry import Registry
from mlx_patches.patches import catalogue

PATCHES = ROOT / "mlx_patches" / "patches"
ORDER = ROOT / "tools" / "stacked.txt"
STACKED = [line for line in ORDER.read_text().splitlines() if not line.startswith("#")]
# Patches of hosts that have no release; activation.git_hosts lists them.
UNRELEASED = "omlx"
_PATCH = re.compile(r"^(\w+) = Patch\(", re.MULTILINE)


def find(root: Path = PATCHES) -> dict[str, str]:
    """Each patch's id to its place, in the order in which patches stack."""
    found: dict[str, str] = {}
    for folder in sorted(root.glob("*/*/")):
        if folder.parent.name in ("_shared", UNRELEASED) or not (folder / "__init__.py").exists():
            continue
        places = [
            (".".join(("mlx_patches.patches", *file.relative_to(root).with_suffix("").parts)), name)
            for file in sorted(folder.glob("*.py"))
            for name in _PATCH.findall(file.read_text())
        ]
        if not places:
            raise SystemExit(f"{folder.relative_to(root)} declares no patch; remove it, or add one")
        for module, name in places:
            id_ = getattr(importlib.import_module(module), name).id
            if id_ in found:
                raise SystemExit(f"{module}: {found[id_]} has the id {id_} too; rename one")
            found[id_] = module if name == "PATCH" else f"{module}:{name}"
    if unknown := [id_ for id_ in STACKED if id_ not in found]:
        raise SystemExit(f"{ORDER.relative_to(ROOT)} names {unknown[0]}, which no folder has")
    return {id_: found[id_] for id_ in dict.fromkeys((*STACKED, *found))}


def registry() -> Registry:
    """The patches of the folders; unlike ``catalogue.builtin``, it does not need the table."""
    made = Registry({id_: {"place": place} for id_, place in find().items()})
    first: dict[str, str] = {}
    for patch in made:
        for target in patch.targets:
            pair = {first.setdefault(target.path, patch.id), patch.id}
            if len(pair) > 1 and (missing := pair - {*STACKED}):
                raise SystemExit(
                    f"{' and '.join(sorted(pair))} both change {target.path}:"
                    f" add {min(missing)} to {ORDER.relative_to(ROOT)}"
                )
    return made


def describe(patch: Patch, place: str) -> dict[str, Any]:
    """A patch's place, its only distribution, and its fields that differ from the default.

    The targets have no factory and no check.
    """
    known, default = ("id", "targets", "module", "doc"), Patch._field_defaults
    fields = patch._asdict().items()
    own = {k: v for k, v in fields if k not in known and v != default.get(k)}
    targets = [
        " ".join((*target[:3], "".join(str(int(flag)) for flag in target[5:8]), *target[4]))
        for target in patch.targets
    ]
    distributions = {one.distribution for one in patch.targets if not one.supports}
    only = {"distribution": distributions.pop()} if len(distributions) == 1 else {}
    return {"place": place, **only, **own, "targets": targets}


def text() -> str:
    places = find()
    rows = {patch.id: describe(patch, places[patch.id]) for patch in registry()}.items()
    lines = [f"{json.dumps(id_)}: {json.dumps(row, separators=(',', ':'))}" for id_, row in rows]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write() -> None:
    write_whole(catalogue.DECLARATIONS, text())


def check_probes() -> None:
    """Check that each patch has its probe."""
    for patch in registry():
        module, function = patch.probe_place
        try:
            getattr(importlib.import_module(module), function)
        except (ModuleNotFoundError, AttributeError) as error:
            raise SystemExit(f"{patch.module}: {patch.id} has no probe: {error}") from None
