"""The report page: model families by releases, with the evidence behind each cell.

One self-contained HTML file. ``content`` gathers what it shows, ``page`` puts that into the
template beside this module; the browser makes the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from .._activation import MODEL_PACKAGES, session
from .._recommend import RED, REPAIRED

HERE = Path(__file__).parent


def content(
    measured: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the page shows.

    Args:
        measured: one mapping a release set, oldest first: ``set``, ``versions`` and
            ``families`` (family to fate) as in the summary that the package carries; where the
            lab's own evidence is at hand, its ``without``, ``with``, ``details_without``,
            ``details_with`` and ``needs`` as well.
        audit: the JSON form of an environment's audit.
    """
    scenarios = _scenarios(measured)
    here = {one["name"]: one["version"] for one in audit["distributions"]} if audit else {}
    return {
        "mlx_patches": __version__,
        "audit": audit,
        "patches": {patch.id: patch.summary for patch in session().registry},
        "scenarios": scenarios,
        "packages": [
            _package(
                name,
                [one for one in measured if one["set"].split()[0] == name],
                here.get(name),
                scenarios,
            )
            for name in MODEL_PACKAGES.values()
        ],
    }


def from_summary(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The release sets of the summary that the package carries, as ``content`` takes them."""
    return [{"set": name, **one} for name, one in summary["sets"].items()]


def page(shown: Mapping[str, Any]) -> str:
    """The page as HTML."""
    # "<" would let a string of the data end the script element.
    data = json.dumps(shown, separators=(",", ":")).replace("<", "\\u003c")
    html = (HERE / "page.html").read_text("utf-8")
    for name, text in (
        ("page.css", (HERE / "page.css").read_text("utf-8")),
        ("page.js", (HERE / "page.js").read_text("utf-8")),
        ("data", data),
    ):
        before, after = html.split(f"[[{name}]]", 1)
        html = before + text + after
    return html


def _package(
    name: str,
    measured: Sequence[Mapping[str, Any]],
    here: str | None,
    scenarios: Sequence[str],
) -> dict[str, Any]:
    """One heat map: its columns newest first, and each family's cell in each of them."""
    columns = {one["set"].split()[1]: one for one in measured}
    versions = list(reversed(columns))
    if here is not None and here not in columns:
        versions.insert(0, here)
    families = sorted({family for one in measured for family in one["families"]})
    return {
        "name": name,
        "here": here,
        "sets": [
            {"version": v, "versions": columns[v]["versions"] if v in columns else None}
            for v in versions
        ],
        "families": {
            family: [_cell(columns.get(v), name, v, family, scenarios) for v in versions]
            for family in families
        },
    }


def _cell(
    one: Mapping[str, Any] | None,
    distribution: str,
    version: str,
    family: str,
    scenarios: Sequence[str],
) -> dict[str, Any] | None:
    """A family in a release; None where it was not measured there."""
    if one is None or family not in one["families"]:
        return None
    cell: dict[str, Any] = {"fate": one["families"][family]}
    if "without" not in one:
        wrong = cell["fate"] in (RED, REPAIRED)
        return {**cell, "patches": _by_matrix(distribution, version, family) if wrong else []}
    without, with_ = (one.get(part, {}).get(family, {}) for part in ("without", "with"))
    said = [one.get(part, {}).get(family, {}) for part in ("details_without", "details_with")]
    needs = one.get("needs", {}).get(family, {})
    named = {patch for patches in needs.values() for patch in patches}
    return {
        **cell,
        "patches": [patch for patch in session().registry.ids() if patch in named],
        "pairs": " ".join(without.get(name, "-") + with_.get(name, "") for name in scenarios),
        "said": {
            name: [part.get(name, "") for part in said]
            for name in without
            if any(name in part for part in said)
        },
        "needs": needs,
    }


def _by_matrix(distribution: str, version: str, family: str) -> list[str]:
    """The patches that the matrix names for a family and that apply to a release."""
    matrix = session().matrix
    rules = {id_: matrix.rule(id_, distribution) for id_ in matrix.patches_for(family, distribution)}
    return [id_ for id_, rule in rules.items() if rule and rule.decide(version) == "affected"]


def _scenarios(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every scenario of the evidence, in the order in which the lab runs them."""
    names: dict[str, None] = {}
    for one in measured:
        for cells in one.get("without", {}).values():
            names.update(dict.fromkeys(cells))
    return list(names)
