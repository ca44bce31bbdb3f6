"""Checks that every line of the catalogue has its folder, and every folder its line."""

from __future__ import annotations

import importlib

from patch_evidence import PATCHES
from release_sets import ROOT

from mlx_patches.patches import catalogue

CATALOGUE = "mlx_patches/patches/catalogue.py"


def check() -> None:
    """Check folders, ids and probes."""
    ids = [id_ for id_, _, _ in catalogue.ENTRIES]
    named = set()
    for id_, place, _ in catalogue.ENTRIES:
        if ids.count(id_) > 1:
            raise SystemExit(f"{CATALOGUE}: two lines are of {id_}; give one another id")
        module = place.partition(":")[0]
        file = PATCHES.joinpath(*module.split(".")).with_suffix(".py")
        if not file.exists():
            raise SystemExit(
                f"{CATALOGUE}: {id_} is declared in {_short(file)}, which does not exist;"
                " remove the line, or restore the folder"
            )
        named.add(file.parent)
    for folder in PATCHES.glob("*/*/"):
        if (folder / "patch.py").exists() and folder not in named and folder.parent.name != "omlx":
            raise SystemExit(f"{_short(folder)}: no line of {CATALOGUE} names it; add one")
    for patch in catalogue.builtin():
        module, function = patch.probe_place
        try:
            getattr(importlib.import_module(module), function)
        except (ModuleNotFoundError, AttributeError) as error:
            raise SystemExit(f"{patch.module}: {patch.id} has no probe: {error}") from None


def _short(file: object) -> str:
    return str(file).removeprefix(f"{ROOT}/")
