"""Runs the lab on release sets and writes its evidence, one compact file for each set.

    python tools/measure_lab.py --set 'mlx-lm 0.32.2'     (again: --again)
    python tools/measure_lab.py --shard 1/8
    python tools/measure_lab.py --distinct                families with new code; others as seen
    python tools/measure_lab.py --part with --again       after a patch has changed
    python tools/measure_lab.py --scenario trim --again   after a scenario has changed
    python tools/measure_lab.py --part needs --again      only which patches each cell needs
    python tools/measure_lab.py --check-entries           whether each model's entry is enough
    python tools/measure_lab.py --check-entries --again   and which patches an entry lacks
    python tools/measure_lab.py --dtype bfloat16          another dtype, in a file of its own
    python tools/measure_lab.py --device metal-emulated   the branch that Metal takes, on a CPU
    python tools/measure_lab.py --take FILE               add a file of `mlx-patches lab --evidence`
    python tools/measure_lab.py --write                   only write the generated files

A cell is a letter: g green, r red, n not applicable, i insensitive, x not built. Each cell is
measured without patches and with every patch that the release admits. For a cell that the patches
turn green, the evidence names the patches that it needs, except with --no-needs. For a right cell
that a model's entry alone turns red, it names the entry's companions: the patches that keep it
right. Needs uv.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import measure_alone
import measure_walks
import real_judge
import release_sets
import shards
from release_sets import ROOT, ReleaseSet

from mlx_patches import report
from mlx_patches.auditing import recommend
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import code, outside, store, words
from mlx_patches.evidence.store import cell_pairs
from mlx_patches.evidence.words import CPU, DEVICES, DTYPES, FLOAT32, METAL_EMULATED
from mlx_patches.lab import record, runner
from mlx_patches.lab.record import Cells, details, letters

EVIDENCE = ROOT / "tools" / "evidence" / "lab"
VARIED = EVIDENCE.parent / "variants"  # the cells of tools/measure_variants.py
FINDINGS = ROOT / "docs" / "findings.md"
SECONDS = 3600
EVERY_PATCH = ["--patched", "--every-patch"]
# Prints each family of a distribution, and the set that has its installed code, or nothing.
WHERE = """
import json, sys
from mlx_patches.auditing import code
from mlx_patches.core import distributions
from mlx_patches.lab.families import families
here = distributions.find(sys.argv[1])
print(json.dumps({one.name: code.measured(here, one.name).set for one in families(here.name)}))
"""
# Family to cell to the patches that the cell needs.
Needs = dict[str, dict[str, list[str]]]
SHOWN = words.FAMILY_RESULTS[:3]  # the results with a column of their own in the findings
SHOWN_MODULES = 3  # how many modules a line of the findings names
SHORTEST = 1  # how many families a line of the findings names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", help="only this set")
    shards.add_option(parser, "set")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", choices=("without", "with", "needs"), help="only this part")
    parser.add_argument("--scenario", action="append", default=[], help="only this scenario")
    parser.add_argument("--model", action="append", default=[], help="only this family")
    parser.add_argument("--again", action="store_true", help="also measure what has evidence")
    parser.add_argument("--distinct", action="store_true", help="of a new set, only new code")
    parser.add_argument("--no-needs", action="store_true", help="trace no cell's needed patches")
    parser.add_argument("--likely", action="append", default=[], help="try this patch first")
    parser.add_argument("--take", type=Path, help="add evidence from another machine")
    parser.add_argument("--write", action="store_true", help="measure nothing, only write")
    entries = "measure with what apply() gives each model; --again: trace what an entry lacks"
    parser.add_argument("--check-entries", action="store_true", help=entries)
    parser.add_argument("--dtype", choices=DTYPES, default=FLOAT32, help="dtype of the weights")
    parser.add_argument("--device", choices=DEVICES, default=CPU, help="what MLX computes on here")
    options = parser.parse_args()
    if options.take:
        print(take(options.take, options.again))
        write(load())
        return
    place = Place(options.device, options.dtype)
    parts = {None: ("without", "with"), "needs": ()}.get(options.part, (options.part,))
    only = Only(tuple(options.scenario), tuple(options.model))
    sets = options.shard.of([one for one in release_sets.load().values() if has_models(one)])
    if options.sets:
        sets = [one for one in sets if one.name in options.sets]
    if options.check_entries:
        if not sets:
            raise SystemExit("no release set of this name: see tools/release_sets.toml")
        lacking = [line for one in sets for line in lacks(one, options.jobs, options.again, only)]
        print("\n".join(lacking) or "every model's entry is enough")
        sys.exit(bool(lacking))
    for one in () if options.write else sets:
        likely = None if options.no_needs else options.likely
        chosen, again = only, options.again
        if options.distinct and one.name not in code.sets_of(one.distribution):
            chosen, again = replace(only, families=take_known(one)), True
            if not chosen.families:
                continue
        measure(one, parts, options.jobs, again, chosen, likely, place)
    mark_code()
    write(load())


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


def has_models(one: ReleaseSet) -> bool:
    """Whether the set's distribution has model families of its own."""
    return one.distribution in MODEL_PACKAGES.values()


def write(evidence: list[dict[str, Any]]) -> None:
    """Write the page of findings, and the summary inside the package."""
    FINDINGS.write_text(findings(evidence))
    recommend.SUMMARY.write_text(json.dumps(summary(evidence), indent=1) + "\n")


def summary(evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """Set to its versions and the result of each of its families."""
    facts = {
        one["set"]: {"versions": one["versions"], "families": family_results(one)}
        for one in evidence
    }
    return {"sets": facts}


def file_of(one: ReleaseSet, place: Place = PLAIN) -> Path:
    return EVIDENCE / store.file_name(one.slug, *place)


def save(one: ReleaseSet, evidence: dict[str, Any], place: Place = PLAIN) -> None:
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    file_of(one, place).write_text(json.dumps(evidence, indent=1) + "\n")


def measure(
    one: ReleaseSet,
    parts: Sequence[str],
    jobs: int,
    again: bool,
    only: Only = Only(),
    likely: Collection[str] | None = (),
    place: Place = PLAIN,
) -> None:
    """Measure the parts that a set's evidence lacks, or some of their cells, and add them.

    With ``likely``, also which patches each repaired cell needs; these patches are tried first.
    """
    evidence = evidence_of(one, place) or {"set": one.name, **place.facts}
    todo = [part for part in parts if again or part not in evidence]
    wanted = bool(todo) or (not parts and (again or "needs" not in evidence))
    if place.is_emulated and not only.families:  # the others run there what they run on a CPU
        only = replace(only, families=tuple(store.metal_branches(one.name) or ()))
    if only.families:
        known = evidence.get("without") or evidence_of(one).get("without", {})
        only = replace(only, families=tuple(f for f in only.families if f in known))
        wanted = wanted and bool(only.families)
    if not wanted:
        return
    with release_sets.environment(one) as python:
        lab = Lab(one, python, jobs, only, place)
        if todo:
            if not place.is_emulated:
                check_devices({runner.device(str(python))}, place.device)
            evidence["versions"] = release_sets.versions(python)
        for part in todo:
            rows = lab.cells(part)
            for name, found in ((part, letters(rows)), (f"details_{part}", details(rows))):
                evidence[name] = updated(evidence.get(name, {}), found, only)
        if "with" in evidence and likely is not None:
            # Which patches a cell needs, the plain CPU says where it can run the cell.
            told = evidence_of(one).get("needs", {}) if place.is_emulated else {}
            repaired = {
                family: [
                    name
                    for name, pair in pairs.items()
                    if pair in ("rg", "rn")
                    and only.has(family, name)
                    and name not in told.get(family, {})
                ]
                for family, pairs in cell_pairs(evidence).items()
            }
            traced = updated(evidence.get("needs", {}), lab.traced(repaired, likely), only)
            evidence["needs"] = dict(sorted(traced.items()))
    save(one, evidence, place)
    results = list(family_results(evidence).values())
    print(one.name, {name: results.count(name) for name in sorted(set(results))}, flush=True)


def take_known(one: ReleaseSet) -> tuple[str, ...]:
    """Give a new set the evidence of the families whose code was measured in other sets.

    Returns:
        The families with other code, which are to be measured.
    """
    with release_sets.environment(one) as python:
        found = json.loads(release_sets.run(python, "-c", WHERE, one.distribution))
        evidence: dict[str, Any] = {"set": one.name, "versions": release_sets.versions(python)}
    new = tuple(family for family, name in found.items() if not name)
    evidence["without"] = {family: {} for family in new}
    evidence["same_code"] = {family: name for family, name in found.items() if name}
    for family, name in evidence["same_code"].items():
        other = json.loads((EVIDENCE / f"{name.replace(' ', '-')}.json").read_text())
        for part, cells in other.items():
            if isinstance(cells, dict) and family in cells and part != "same_code":
                evidence.setdefault(part, {})[family] = cells[family]
    save(one, evidence)
    print(f"{one.name}: {len(new)} of {len(found)} families have new code", flush=True)
    return new


def mark_code() -> None:
    """Record the code of the sets that were measured since."""
    measured = {one["set"] for one in load()}
    for one in release_sets.load().values():
        if one.name in measured - {*code.sets_of(one.distribution)}:
            with release_sets.environment(one) as python:
                release_sets.run(python, str(ROOT / "tools" / "mark_code.py"))


def check_devices(found: set[str], wanted: str) -> None:
    """Check that MLX computed on the device that evidence is written for.

    Raises:
        SystemExit: it computed on another one.
    """
    if other := found - {wanted, ""}:
        raise SystemExit(f"MLX computes on {', '.join(other)} here, not on {wanted}: see --device")


def lacks(one: ReleaseSet, jobs: int, again: bool, only: Only) -> list[str]:
    """A line for each cell that is green with every patch, and not with the model's entry.

    With ``again``, the set's evidence gets the patches that such a cell needs: beside its needs if
    it is red as released, else as the companions of the entry.

    Raises:
        SystemExit: the set was not measured with every patch.
    """
    evidence = evidence_of(one)
    if "with" not in evidence:
        raise SystemExit(f"{one.name}: no evidence with every patch; run --part with first")
    with release_sets.environment(one) as python:
        lab = Lab(one, python, jobs, only)
        found = letters(lab.cells("entry"))
        lacking = {
            family: [
                name
                for name, cell in named.items()
                if cell == "g" and only.has(family, name) and found.get(family, {}).get(name) != "g"
            ]
            for family, named in evidence["with"].items()
        }
        if again:
            for family, named in lab.traced(lacking, flags=["--beside-entry"]).items():
                for name, ids in named.items():
                    part = "companions" if evidence["without"][family][name] == "g" else "needs"
                    evidence.setdefault(part, {}).setdefault(family, {})[name] = ids
            save(one, evidence)
    return [
        f"{one.name}: {family} is {found.get(family, {}).get(name, 'missing')} in {name}"
        for family, names in lacking.items()
        for name in names
    ]


def take(file: Path, again: bool = False) -> str:
    """Add the evidence in a file from ``mlx-patches lab --evidence``; returns what it added.

    Args:
        again: replace evidence of the same families.

    Raises:
        SystemExit: the file is rejected; the message is one line with the reason.
    """
    try:
        sent = record.read(file)
    except MlxPatchesError as error:
        raise SystemExit(str(error)) from None
    sets = {one.name: one for one in release_sets.load().values() if has_models(one)}
    if sent["set"] not in sets:
        raise SystemExit(f"{file}: {sent['set']} is not in tools/release_sets.toml")
    place = Place(*store.measured_on(sent))
    one = sets[sent["set"]]
    before = evidence_of(one, place)
    if reason := not_taken(before or evidence_of(one), sent):
        raise SystemExit(f"{file}: {reason}")
    held = sorted(before.get("without", {}).keys() & sent["without"].keys())
    if held and not again:
        raise SystemExit(f"{file}: measured before: {few(held)}; --again replaces it")
    save(one, joined(before, sent), place)
    return f"{sent['set']}, {', '.join(place)}: added {few(sent['without'])}"


def evidence_of(one: ReleaseSet, place: Place = PLAIN) -> dict[str, Any]:
    """A set's evidence for one device and dtype; empty if there is none."""
    file = file_of(one, place)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


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


def joined(before: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """A set's evidence with the sent families added or replaced."""
    only = Only(families=tuple(sent["without"]))
    result = {**before, **sent}
    for part in ("without", "with", "details_without", "details_with"):
        if part in result:
            cells = updated(before.get(part, {}), sent.get(part, {}), only)
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


def updated(old: Cells, new: Cells, only: Only) -> Cells:
    """The new cells, and the old cells that were not measured again."""
    kept = {
        family: {name: cell for name, cell in named.items() if not only.has(family, name)}
        for family, named in old.items()
    }
    both = {family: kept.get(family, {}) | new.get(family, {}) for family in kept | new}
    return {family: named for family, named in both.items() if named}


class Lab(NamedTuple):
    """The lab in a release set's environment."""

    one: ReleaseSet
    python: Path
    jobs: int
    only: Only = Only()
    place: Place = PLAIN

    def cells(self, part: str, variant: str = "") -> list[dict[str, Any]]:
        """Run the lab; returns the rows of the set's own families.

        The part is ``without`` patches, ``with`` every patch, or with the model's ``entry``.
        """
        flags = {"without": ["--unpatched"], "entry": ["--patched"]}.get(part, EVERY_PATCH)
        command = ["mlx_patches", "lab", *flags, "--dtype", self.place.dtype]
        command += ["--variant", variant] if variant else []
        command += ["--device", self.place.device] if self.place.is_emulated else []
        command += [*self.only.flags(self.one.distribution), "--jobs", str(self.jobs)]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cells.jsonl"
            command += ["--out", str(out)]
            release_sets.run(self.python, "-m", *command, seconds=SECONDS, codes=(0, 1))
            rows = [json.loads(line) for line in out.read_text().splitlines()]
        check_devices({row["device"] for row in rows}, self.place.device)
        own = [row for row in rows if row["family"].startswith(f"{self.one.distribution}:")]
        return sorted(own, key=lambda row: str(row["family"]))

    def traced(
        self, wanted: dict[str, list[str]], likely: Collection[str] = (), flags: Sequence[str] = ()
    ) -> Needs:
        """Family to each of its wanted cells to the patches without which it is red.

        The ``likely`` patches, and those that the same cells need in other sets, are tried first.
        ``flags`` are further arguments of ``mlx_patches.lab.attribute``.
        """
        distribution = self.one.distribution
        elsewhere = [
            other.get("needs", {}) for other in load() if other["set"].split()[0] == distribution
        ]

        def attributed(family: str) -> dict[str, list[str]]:
            command = ["-m", "mlx_patches.lab.attribute", f"{distribution}:{family}"]
            command += ["--dtype", self.place.dtype, *flags]
            command += ["--device", self.place.device] if self.place.is_emulated else []
            there = set(likely)
            for name in wanted[family]:
                command += ["--scenario", name]
                there.update(*(cells.get(family, {}).get(name, ()) for cells in elsewhere))
            for patch in sorted(there):
                command += ["--likely", patch]
            found: dict[str, list[str]] = json.loads(release_sets.run(self.python, *command))
            return found

        families = [family for family, names in wanted.items() if names]
        with ThreadPoolExecutor(self.jobs) as pool:
            return dict(zip(families, pool.map(attributed, families), strict=True))


def family_results(evidence: dict[str, Any]) -> dict[str, str]:
    """Family to its result in a set."""
    return {family: words.family_result(pairs) for family, pairs in cell_pairs(evidence).items()}


def load() -> list[dict[str, Any]]:
    """All lab evidence, releases oldest first."""
    return store.load(EVIDENCE)


def findings(evidence: list[dict[str, Any]]) -> str:
    """The findings page: each set's counts, and the defects of the newest sets."""
    lines = [
        "# What the lab found",
        "",
        "Generated by `python tools/measure_lab.py --write`, from tiny models with random weights.",
        "A family is red if any scenario is red, except `max-kv-size`, which is a feature.",
        "`repaired` means green only with the patches; it includes families that are right in a",
        "batch but wrong in a single request as released.",
        "",
        *counts(["release set"], [([one["set"]], one) for one in evidence]),
        "",
        *counts(["release set", "device", "dtype"], elsewhere()),
        "",
        "Metal kernels that `metal-emulated` ran, of all in the release's packages:",
        "",
        *of_kernels(),
        "",
        "Variants of the tiny configs (`mlx-patches lab --variant longrope --model NAME`):",
        "",
        *varied([json.loads(file.read_text()) for file in sorted(VARIED.glob("*.json"))]),
    ]
    lines += [
        "",
        "Single requests, compared with transformers (`mlx-patches lab --reference`): model types",
        "that match in every config, that match with the patches, and that differ in some config.",
        "Types that already differ in the plain config are skipped.",
        "",
        *compared(),
        "",
        "What still differs with the patches, in all of these sets:",
        "",
        *still_different(),
        "",
        "Scenarios that run only by name ([lab.md](lab.md)): families, or cases of a release,",
        "right/repaired/wrong. `config-fields` is wrong if a rope type is ignored, even if no",
        "published config has it.",
        "",
        *measure_alone.table(),
        "",
        "Still wrong, except `config-fields`:",
        "",
        *measure_alone.reasons(),
        "",
        "Random walks ([lab.md](lab.md#walks)) with every patch:",
        "",
        *measure_walks.table(),
        "",
        *real_judge.page(real_judge.load()),
    ]
    for distribution in MODEL_PACKAGES.values():
        for one in [one for one in evidence if one["set"].startswith(f"{distribution} ")][-1:]:
            lines += ["", f"## Repaired in {one['set']}", "", *repairs(one)]
            lines += ["", f"## Still red in {one['set']}", "", *defects(one)]
    return "\n".join(lines) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [f"|{'|'.join(row)}|" for row in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


def counts(names: Sequence[str], rows: Iterable[tuple[Sequence[str], dict[str, Any]]]) -> list[str]:
    """A table of how many families have each result, a line for each evidence."""
    others = [name for name in words.FAMILY_RESULTS if name not in SHOWN]
    lines = []
    for labels, one in rows:
        results = list(report.results_of(one).values())
        rest = ", ".join(str(results.count(name)) for name in others)
        lines.append([*labels, *(str(results.count(name)) for name in SHOWN), rest])
    return table([*names, *SHOWN, ", ".join(others)], lines)


def elsewhere() -> list[tuple[list[str], dict[str, Any]]]:
    """The evidence of each other device and dtype, with its set, device and dtype."""
    sets = [one for one in release_sets.load().values() if has_models(one)]
    places = [Place(device, dtype) for device in DEVICES for dtype in DTYPES]
    return [
        ([one.name, *place], evidence)
        for one in sets
        for place in places
        if place != PLAIN and (evidence := evidence_of(one, place))
    ]


def of_kernels() -> list[str]:
    """A table of the kernels that ran where Metal was emulated, and of the others' modules."""
    lines = []
    for (name, device, _), one in elsewhere():
        if device != METAL_EMULATED or record.KERNELS not in one:  # `lab --evidence` has them
            continue
        packages = one[record.KERNELS].values()
        parts = (record.RAN, record.NOT_REACHED)
        ran, left = ([call for of in packages for call in of[part]] for part in parts)
        # A call is told as MODULE:LINE, and its name if it has one.
        modules = Counter(call.split(":")[0].rpartition(".")[2] for call in left)
        most = [f"`{module}` {count}" for module, count in modules.most_common(SHOWN_MODULES)]
        lines.append([name, f"{len(ran)} of {len(ran) + len(left)}", ", ".join(most)])
    return table(("release set", "kernels ran", "most that did not"), lines)


def varied(evidence: Iterable[dict[str, Any]]) -> list[str]:
    """A table of the variants' cells, a line for each set; names those that differ from plain."""
    lines = []
    for one in evidence:
        plain = cell_pairs(store.load_set(one["set"]) or {"without": {}})
        found = [
            (pair, plain.get(family, {}).get(scenario, pair), f"{family} {scenario} ({variant})")
            for variant, cells_ in one["variants"].items()
            for family, pairs in cell_pairs(cells_).items()
            for scenario, pair in pairs.items()
        ]
        red = sum(pair[0] == "r" for pair, _, _ in found)
        still = sum(words.is_red(pair) for pair, _, _ in found)
        unlike = ", ".join(name for pair, usual, name in found if pair != usual) or "none"
        count = sum(pair[0] != "n" for pair, _, _ in found)
        lines.append([one["set"], str(count), str(red), str(still), unlike])
    heads = ("release set", "cells", "red as released", "red with the patches", "not as plain")
    return table(heads, lines)


def compared() -> list[str]:
    """A table of single requests compared with transformers, a line for each set."""
    lines = []
    for one in release_sets.load().values():
        types = outside.held_types(one.name).values()
        if types:
            kinds = [held.result for held in types]
            counts = [str(kinds.count(name)) for name in outside.TYPE_RESULTS]
            pairs = [cell.pair for held in types if held.comparable for cell in held.cells]
            right, stays = (sum(map(test, pairs)) for test in ("gg".__eq__, words.is_red))
            cells_ = [str(right), str(len(pairs) - right - stays), str(stays)]
            lines.append([one.name, *{held.outside for held in types}, *counts, *cells_])
    heads = ("match", "match patched", "differ", "skipped")
    return table(
        ("release set", "compared with", *heads, "configs match", "patched", "differ"), lines
    )


# For the configs that still differ, by what they have: why no patch repairs them.
SHORT, ROPE, FIELD = "rope type longrope, short texts", "another rope type", "another field"
UNLIKE = {
    SHORT: "by design: the release uses the factors of long texts for every text, so that cached"
    " prompts stay valid",
    ROPE: "no known published config of these families has it",
    outside.WINDOW: "Mistral 7B 0.1 is loaded as Llama, and a fix would slow down all Llama models",
    outside.THETA: "the release has no such field, or one for all layers",
    FIELD: "a bias, tied heads or a factor that the release does not support:"
    " no known published config sets it",
}


def kind_of(name: str) -> str:
    """The line of ``UNLIKE`` that a config's name belongs to; empty for a plain config."""
    base = name.removesuffix(outside.OLD)
    known = {"longrope short": SHORT, outside.PLAIN: ""}
    if base in known or base in UNLIKE:
        return known.get(base, base)
    return FIELD if "=" in base else ROPE


def still_different() -> list[str]:
    """A table of the configs that still differ with the patches: what they have, and why."""
    types: dict[str, list[str]] = defaultdict(list)  # a model type once for each config
    for one in release_sets.load().values():
        for model_type, held in outside.held_types(one.name).items():
            red = [cell.name for cell in held.defects() if words.is_red(cell.pair)]
            for name in red:
                types[kind_of(name)].append(model_type)
    rows = [
        (name, str(len(types[name])), few(set(types[name])), why)
        for name, why in UNLIKE.items()
        if name in types
    ]
    return table(("config", "cells", "model types", "why"), rows)


def repairs(one: dict[str, Any]) -> list[str]:
    """The set's repairs as table lines, those of most families first."""
    families: dict[str, set[str]] = defaultdict(set)
    for family, by_scenario in one.get("needs", {}).items():
        for patch in {patch for ids in by_scenario.values() for patch in ids}:
            families[patch].add(family)
    several = [(patch, names) for patch, names in largest(families) if len(names) > 1]
    rows = [(f"`{patch}`", str(len(names))) for patch, names in several]
    single = ", ".join(f"`{patch}`" for patch, names in largest(families) if len(names) == 1)
    return table(("patch", "families"), rows + ([(single, "one each")] if single else []))


def defects(one: dict[str, Any]) -> list[str]:
    """The set's cells that stay red with the patches as table lines, grouped by failure."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for family, pairs in cell_pairs(one).items():
        red = [name for name, pair in pairs.items() if pair[1:] == "r"]
        said = {name: one["details_with"][family][name] for name in red}
        silent = [name for name in red if not CRASH.search(said[name])]
        if silent:
            groups[f"logits differ from a single request: {places_of(silent)}"][family] = silent
        for name in red:
            if name not in silent:
                groups[crash(said[name])].setdefault(family, []).append(name)
    if not groups:
        return ["None."]
    lines = []
    for said_, found in largest(groups):
        family, names = min(found.items())
        name, _, dtype = words.place_of(names[0])
        kind = "" if dtype == FLOAT32 else f" --dtype {dtype}"
        command = f"`mlx-patches lab --model {family} --scenario {name}{kind}`"
        lines.append((said_, command, few(found)))
    return table(("what goes wrong", "reproduce", "families"), lines)


def places_of(cells: Iterable[str]) -> str:
    """The scenarios of cells, and the devices and dtypes other than the plain one."""
    places = [words.place_of(cell) for cell in cells]
    scenarios = ", ".join(dict.fromkeys(scenario for scenario, _, _ in places))
    others = {fact for _, *place in places for fact in place} - {*PLAIN}
    return f"{scenarios} (also {', '.join(sorted(others))})" if others else scenarios


def largest(groups: Mapping[str, Collection[str]]) -> list[Any]:
    """The groups, those of most families first."""
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def few(families: Iterable[str]) -> str:
    """How many families there are, and the names of the first."""
    names = sorted(families)
    more = f" and {len(names) - SHORTEST} more" if len(names) > SHORTEST else ""
    return f"{len(names)}: " + ", ".join(f"`{name}`" for name in names[:SHORTEST]) + more


# The form of engine.where: an exception, and its file and line in the package.
CRASH = re.compile(r"^\w+(Error|Exception|Interrupt|Warning)\b.*\(([\w/.-]+\.py:\d+)\)$")


def crash(detail: str) -> str:
    """A crash's text with its numbers replaced, so that one defect of many families is one line."""
    where = CRASH.search(detail)
    assert where
    said = re.sub(r"\d+", "N", detail[: where.start(2) - 2]).replace("|", "\\|")
    return f"{said} (`{where[2]}`)"


if __name__ == "__main__":
    main()
