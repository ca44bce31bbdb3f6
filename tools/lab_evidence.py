"""The files of the lab's evidence in tools/evidence/lab, one for each set, device and dtype.

A cell is a letter: g green, r red, n not applicable, i insensitive, x not built. Each cell is
measured without patches and with every patch that the release admits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import evidence_file
import release_sets
import sent_evidence
from release_sets import ROOT, ReleaseSet

from mlx_patches.auditing.recommend import include_beside
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import store, words
from mlx_patches.evidence.store import cell_pairs
from mlx_patches.evidence.words import CPU, FLOAT32, METAL_EMULATED
from mlx_patches.lab import record
from mlx_patches.lab.record import Cells

EVIDENCE = ROOT / "tools" / "evidence" / "lab"
SHORTEST = 1  # how many families a line names


class Place(NamedTuple):
    """The device that MLX computes on, and the dtype of the weights."""

    device: str = CPU
    dtype: str = FLOAT32

    @property
    def is_emulated(self) -> bool:
        """Whether the device is emulated, whatever MLX computes on here."""
        return self.device == METAL_EMULATED

    @property
    def facts(self) -> dict[str, str]:
        """The keys that a file of evidence has for it; none for a CPU in float32."""
        return {} if self == PLAIN else self._asdict()


PLAIN = Place()


@dataclass(frozen=True)
class Only:
    """Which scenarios and families of a set are measured; an empty tuple means all."""

    scenarios: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def has(self, family: str, scenario: str) -> bool:
        """Whether a cell is among them."""
        return (not self.families or family in self.families) and (
            not self.scenarios or scenario in self.scenarios
        )

    def flags(self, distribution: str) -> list[str]:
        """The arguments of ``mlx-patches lab`` that select them."""
        flags = [flag for name in self.scenarios for flag in ("--scenario", name)]
        models = [f"{distribution}:{name}" for name in self.families] or [distribution]
        return flags + [flag for name in models for flag in ("--model", name)]


ALL = Only()


def has_models(one: ReleaseSet) -> bool:
    return one.distribution in MODEL_PACKAGES.values()


def find(name: str) -> ReleaseSet:
    """The set with this name; its release has models."""
    one = release_sets.find(name)
    if not has_models(one):
        raise SystemExit(f"{name}: it has no models, so the lab cannot measure it")
    return one


def file_of(one: ReleaseSet, place: Place = PLAIN) -> Path:
    return EVIDENCE / f"{one.slug}{'' if place == PLAIN else f'-{place.device}-{place.dtype}'}.json"


def save(
    one: ReleaseSet, evidence: dict[str, Any], place: Place = PLAIN, before: Any = None
) -> None:
    """Write a set's evidence for one device and dtype; see ``evidence_file.save``."""
    evidence_file.save(file_of(one, place), evidence, before)


def evidence_of(one: ReleaseSet, place: Place = PLAIN) -> dict[str, Any]:
    """A set's evidence for one device and dtype; empty if there is none."""
    found: dict[str, Any] = evidence_file.read(file_of(one, place))
    return found


def run_lab(python: Path, *flags: str, seconds: int, **variables: Any) -> list[dict[str, Any]]:
    """The rows of a run of the lab in an environment; for the rest see ``release_sets.run``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = ("-m", "mlx_patches", "lab", *flags, "--out", str(out))
        release_sets.run(python, *command, seconds=seconds, codes=(0, 1), **variables)
        return evidence_file.read_lines(out)


def family_results(evidence: dict[str, Any]) -> dict[str, str]:
    return {family: words.family_result(pairs) for family, pairs in cell_pairs(evidence).items()}


def results_of(evidence: dict[str, Any]) -> dict[str, str]:
    """Family to its result, as counted in docs/findings.md and its chart."""
    return {
        family: include_beside(result, evidence["set"], family)
        for family, result in family_results(evidence).items()
    }


def load() -> list[dict[str, Any]]:
    return store.load(EVIDENCE)


def take(file: Path, again: bool = False) -> str:
    """Add the evidence in a file from ``mlx-patches lab --evidence``; returns what it added.

    Args:
        again: replace evidence of the same families.
    """
    try:
        sent = sent_evidence.read(file)
    except MlxPatchesError as error:
        raise SystemExit(str(error)) from None
    sets = {one.name: one for one in release_sets.load().values() if has_models(one)}
    if sent["set"] not in sets:
        raise SystemExit(f"{file}: {sent['set']} is not in tools/release_sets.toml")
    place = Place(*store.place_measured(sent))
    one = sets[sent["set"]]
    before = evidence_of(one, place)
    if reason := not_taken(before or evidence_of(one), sent):
        raise SystemExit(f"{file}: {reason}")
    held = sorted(before.get("without", {}).keys() & sent["without"].keys())
    if held and not again:
        raise SystemExit(f"{file}: measured before: {few(held)}; --again replaces it")
    save(one, join_families(before, sent), place)
    return f"{sent['set']}, {', '.join(place)}: added {few(sent['without'])}"


def not_taken(before: dict[str, Any], sent: dict[str, Any]) -> str:
    """Why evidence cannot be added to that of its set; empty if it can."""
    # A Mac may have its own MLX and transformers; the models' code must be the set's.
    for name in MODEL_PACKAGES.values():
        pair = [one.get("versions", {}).get(name) for one in (before, sent)]
        if before and pair[0] != pair[1]:
            return f"measured with {name} {pair[1] or 'missing'}, its set has {pair[0] or 'none'}"
    if "with" in before and "with" not in sent:
        return "its set was also measured with the patches: omit --unpatched"
    return ""


def join_families(before: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """A set's evidence with the sent families added or replaced."""
    only = Only(families=tuple(sent["without"]))
    result = {**before, **sent}
    for part in ("without", "with", "details_without", "details_with"):
        if part in result:
            cells = update_cells(before.get(part, {}), sent.get(part, {}), only)
            result[part] = dict(sorted(cells.items()))
    if record.KERNELS in before and record.KERNELS in sent:
        result[record.KERNELS] = kernels_of_both(before[record.KERNELS], sent[record.KERNELS])
    if "needs" in before:
        left = {f: named for f, named in before["needs"].items() if f not in only.families}
        result["needs"] = left
    return result


def kernels_of_both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Package to its kernels that ran in one of two runs of one set, and to the others."""
    found = {}
    for package, both in other.items():
        ran = {*both[record.RAN], *one.get(package, both)[record.RAN]}
        every = [call for calls in both.values() for call in calls]
        found[package] = {
            record.RAN: [call for call in every if call in ran],
            record.NOT_REACHED: [call for call in every if call not in ran],
        }
    return found


def update_cells(old: Cells, new: Cells, only: Only) -> Cells:
    """The new cells, and the old cells that were not measured again."""
    kept = {
        family: {name: cell for name, cell in named.items() if not only.has(family, name)}
        for family, named in old.items()
    }
    both = {family: kept.get(family, {}) | new.get(family, {}) for family in kept | new}
    return {family: named for family, named in both.items() if named}


def few(families: Iterable[str]) -> str:
    """How many families there are, and the names of the first."""
    names = sorted(families)
    more = f" and {len(names) - SHORTEST} more" if len(names) > SHORTEST else ""
    return f"{len(names)}: " + ", ".join(f"`{name}`" for name in names[:SHORTEST]) + more
