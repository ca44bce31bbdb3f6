"""The report page: model families by release, with the evidence behind each cell.

It is one self-contained HTML file. ``content`` collects its data, ``page`` inserts the data into
the template beside this module, and a script in the page builds the tables.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..activation.session import session
from ..auditing.recommend import include_beside, list_affected, list_wrong_beside, list_wrong_solo
from ..core.errors import MlxPatchesError
from ..core.packages import MODEL_PACKAGES
from ..evidence import outside, words
from ..evidence.store import cell_pairs, metal_branches

HERE = Path(__file__).parent
PARTLY = "partly"
# The start of every page.
BEGINS = b"<!doctype html>\n<html"


def save(
    path: Path, evidence: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None = None
) -> None:
    """Write the page, with the current date."""
    text = page(content(evidence, audit))
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise MlxPatchesError(f"{path}: cannot be written (not a regular file)")
    if not _may_replace(target):
        raise MlxPatchesError(f"{path}: not a page written by mlx-patches; give another file")
    part = target.with_name(f".mlx-patches-{os.getpid()}")  # readers never find a partial page
    try:
        try:
            with part.open("x", encoding="utf-8") as file:
                file.write(text)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be written ({error.strerror})") from None


def content(
    evidence: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The data of the page, as a JSON object."""
    families = [cells for one in evidence for cells in one["without"].values()]
    names = sorted({name for cells in families for name in cells}, key=words.scenario_order)
    parts = [one.get(f"details_{part}", {}) for one in evidence for part in ("without", "with")]
    details = [cells for part in parts for cells in part.values()]
    texts = list(dict.fromkeys(text for cells in details for text in cells.values()))
    number = {text: index for index, text in enumerate(texts)}
    here = {one["name"]: one["version"] for one in audit["distributions"]} if audit else {}
    return {
        "mlx_patches": __version__,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "audit": audit,
        "patches": {patch.id: patch.summary for patch in session().registry.each_declared()},
        "scenarios": [_scenario(name) for name in names],
        # Device and dtype of cells to their description; a CPU in float32 has the empty key.
        "places": {
            _place(name): f"{words.DEVICES[device]}, {dtype}"
            for name, (_, device, dtype) in zip(names, map(words.place_of, names), strict=True)
        },
        # Most details repeat: cells refer to them by index.
        "details": texts,
        "packages": [
            _package(name, evidence, here.get(name), names, number)
            for name in MODEL_PACKAGES.values()
        ],
    }


def page(shown: Mapping[str, Any]) -> str:
    # Packed, a page has 0.2 MB, not 1.8; and no "<" in the data can end its element.
    packed = zlib.compress(json.dumps(shown, separators=(",", ":")).encode(), 9)
    data = base64.b64encode(packed).decode()
    html = (HERE / "page.html").read_text("utf-8")
    # The data is inserted last, so that no placeholder in it is replaced.
    for name, text in (
        ("page.css", (HERE / "page.css").read_text("utf-8")),
        ("page.js", (HERE / "page.js").read_text("utf-8")),
        ("data", data),
    ):
        before, after = html.split(f"[[{name}]]", 1)
        html = before + text + after
    return html


def _may_replace(target: Path) -> bool:
    """Whether a file does not exist, is empty, or is a report page."""
    try:
        with target.open("rb") as file:
            begins = file.read(len(BEGINS))
    except OSError:  # writing will raise a clearer error
        return True
    return begins in (b"", BEGINS)


def _package(
    name: str,
    evidence: Iterable[Mapping[str, Any]],
    here: str | None,
    scenarios: Sequence[str],
    number: Mapping[str, int],
) -> dict[str, Any]:
    """One heat map: the releases, and each family's cell in each release."""
    sets = {one["set"].split()[1]: one for one in evidence if one["set"].split()[0] == name}
    cells = {
        version: {
            family: _cell(one, family, pairs, scenarios, number)
            for family, pairs in cell_pairs(one).items()
        }
        for version, one in sets.items()
    }
    versions = sorted({*sets, *([here] if here else [])}, key=_release, reverse=True)
    # The audited environment's release comes first, then the newest.
    versions.sort(key=lambda version: version != here)
    return {
        "name": name,
        "here": here,
        "releases": [
            {"version": version, "versions": sets.get(version, {}).get("versions")}
            for version in versions
        ],
        "families": {
            family: [cells.get(version, {}).get(family) for version in versions]
            for family in sorted({family for named in cells.values() for family in named})
        },
    }


def _cell(
    one: Mapping[str, Any],
    family: str,
    pairs: Mapping[str, str],
    scenarios: Sequence[str],
    number: Mapping[str, int],
) -> dict[str, Any]:
    matrix = session().matrix
    found = words.family_result(pairs)
    held = outside.find_compared(one["set"], family)
    beside = list_wrong_beside(one["set"], family)
    texts = [held.sentence if held else "", f"Wrong as released: {', '.join(beside)}."]
    by_place: dict[str, dict[str, str]] = {}
    for name, pair in pairs.items():
        by_place.setdefault(_place(name), {})[name] = pair
    repaired = [name for name, pair in pairs.items() if pair == "rg"]
    result = include_beside(found, one["set"], family)
    needs = one.get("needs", {}).get(family, {})
    traced = "with" in one and all(name in needs for name in repaired)
    without, with_ = (
        one.get(f"details_{part}", {}).get(family, {}) for part in ("without", "with")
    )
    return {
        "result": PARTLY if result == words.RED and repaired else result,
        # Not part of the result: scenarios only compare a batch with a single request.
        "solo": list_wrong_solo(one["set"], family),
        "held": " ".join(filter(None, texts[: 1 + bool(beside)])),
        # The letters of each scenario, "-" if the family has no such cell.
        "pairs": " ".join(pairs.get(name, "-") for name in scenarios),
        "details": {
            name: [number.get(part.get(name, ""), -1) for part in (without, with_)]
            for name in pairs
            if name in without or name in with_
        },
        "needs": needs,
        # Scenarios that raised; other red cells have the severity of their scenario.
        "crashes": [
            name
            for name, pair in pairs.items()
            if "r" in pair
            and words.severity_of(name, without.get(name) or with_.get(name, "")) == words.CRASH
            and words.scenario(name).severity != words.CRASH
        ],
        "results": {place: words.family_result(cells) for place, cells in by_place.items()},
        "metal": list((metal_branches(one["set"]) or {}).get(family, ())),
        "row": list_affected(one["set"], matrix.patches_for(family, one["set"].split()[0]))
        if found in (words.RED, words.REPAIRED) and not traced
        else [],
    }


def _scenario(name: str) -> dict[str, str]:
    from ..lab.scenarios import SCENARIOS

    base = words.place_of(name)[0]
    doc = SCENARIOS[base].__doc__ if base in SCENARIOS else ""
    return {
        "name": name,
        "does": (doc or "").replace("``", ""),
        "severity": words.scenario(name).severity,
        "place": _place(name),
    }


def _place(name: str) -> str:
    """The device and dtype in a cell's name; empty for a CPU in float32."""
    return name.partition("@")[2]


def _release(version: str) -> Any:
    """A sort key; texts that are not versions count as the oldest."""
    from packaging.version import Version

    try:
        return Version(version)
    except ValueError:
        return Version("0.dev0")
