"""Writes docs/findings.md and the package's summary of families from the lab's evidence."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence_file
import measure_images
import measure_solo
import measure_walks
import real_judge
import release_sets
from evidence_file import table
from lab_evidence import (
    EVIDENCE,
    PLAIN,
    Place,
    evidence_of,
    family_results,
    few,
    has_models,
    results_of,
)
from release_sets import ROOT

from mlx_patches.auditing import recommend
from mlx_patches.core.files import write as write_whole
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import outside, store, words
from mlx_patches.evidence.store import cell_pairs
from mlx_patches.evidence.words import DEVICES, DTYPES, FLOAT32, METAL_EMULATED
from mlx_patches.lab import record
from mlx_patches.patches import catalogue

VARIED = EVIDENCE.parent / "variants"  # the cells of tools/measure_variants.py
FINDINGS = ROOT / "docs" / "findings.md"
SHOWN = words.FAMILY_RESULTS[:3]  # the results with a separate column in the findings
# The results of a model type: equal, equal with the patches, different with them, not comparable.
TYPE_RESULTS = (words.GREEN, words.REPAIRED, words.RED, words.NOT_APPLICABLE)
SHOWN_MODULES = 3  # how many modules a line of the findings names


def write(evidence: list[dict[str, Any]]) -> None:
    """Write the page of findings, and the summary inside the package."""
    write_whole(FINDINGS, findings(evidence))
    write_whole(recommend.SUMMARY, json.dumps(summary(evidence), indent=1) + "\n")


def summary(evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """Set to its versions and the result of each of its families.

    ``traced`` has the sets in which every repair was traced to patches, ``needed`` the patches that
    cells needed and that still exist.
    """
    facts = {
        one["set"]: {"versions": one["versions"], "families": family_results(one)}
        for one in evidence
    }
    cells = [part for one in evidence for part in one.get("needs", {}).values()]
    needed = {id_ for part in cells for ids in part.values() for id_ in ids}
    return {
        "sets": facts,
        "traced": [one["set"] for one in evidence if store.is_traced(one)],
        "needed": sorted(needed.intersection(catalogue.builtin().ids())),
    }


def findings(evidence: list[dict[str, Any]]) -> str:
    """The findings page: each set's counts, and the defects of the newest sets."""
    tables = {
        "counts": counts(["release set"], [([one["set"]], one) for one in evidence]),
        "elsewhere": counts(["release set", "device", "dtype"], elsewhere()),
        "kernels": of_kernels(),
        "variants": list_variants(evidence_file.load(VARIED)),
        "compared": list_compared(),
        "still_different": still_different(),
        "solo": measure_solo.table(),
        "solo_reasons": measure_solo.reasons(),
        "images": measure_images.page(),
        "walks": measure_walks.table(),
        "real": real_judge.page(real_judge.load()),
    }
    text = Path(__file__).with_suffix(".txt").read_text().rstrip()
    lines = [text.format(**{name: "\n".join(table) for name, table in tables.items()})]
    for distribution in MODEL_PACKAGES.values():
        for one in [one for one in evidence if one["set"].startswith(f"{distribution} ")][-1:]:
            lines += ["", f"## Repaired in {one['set']}", "", *repairs(one)]
            lines += ["", f"## Still red in {one['set']}", "", *defects(one)]
    return "\n".join(lines) + "\n"


def counts(names: Sequence[str], rows: Iterable[tuple[Sequence[str], dict[str, Any]]]) -> list[str]:
    """A table of how many families have each result, a line for each evidence."""
    others = [name for name in words.FAMILY_RESULTS if name not in SHOWN]
    lines = []
    for labels, one in rows:
        results = list(results_of(one).values())
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
        # A call is written as MODULE:LINE, with its name if it has one.
        modules = Counter(call.split(":")[0].rpartition(".")[2] for call in left)
        most = [f"`{module}` {count}" for module, count in modules.most_common(SHOWN_MODULES)]
        lines.append([name, f"{len(ran)} of {len(ran) + len(left)}", ", ".join(most)])
    return table(("release set", "kernels ran", "most that did not"), lines)


def list_variants(evidence: Iterable[dict[str, Any]]) -> list[str]:
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


def list_compared() -> list[str]:
    """A table of single requests compared with transformers, a line for each set."""
    lines = []
    for one in release_sets.load().values():
        types = outside.read_compared(one.name).values()
        if types:
            kinds = [held.result for held in types]
            counts = [str(kinds.count(name)) for name in TYPE_RESULTS]
            pairs = [cell.pair for held in types if held.comparable for cell in held.cells]
            right, stays = (sum(map(test, pairs)) for test in ("gg".__eq__, words.is_red))
            cells_ = [str(right), str(len(pairs) - right - stays), str(stays)]
            lines.append([one.name, *{held.outside for held in types}, *counts, *cells_])
    heads = ("match", "match patched", "differ", "skipped")
    return table(
        ("release set", "compared with", *heads, "configs match", "patched", "differ"), lines
    )


# Why no patch repairs the configs that still differ, by the field that causes it.
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
    """A table of the configs that still differ with the patches: the field, and why."""
    types: dict[str, list[str]] = defaultdict(list)  # a model type once for each config
    for one in release_sets.load().values():
        for model_type, held in outside.read_compared(one.name).items():
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
        details_of = {name: one["details_with"][family][name] for name in red}
        silent = [name for name in red if not CRASH.search(details_of[name])]
        if silent:
            groups[f"logits differ from a single request: {places_of(silent)}"][family] = silent
        for name in red:
            if name not in silent:
                groups[crash(details_of[name])].setdefault(family, []).append(name)
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


# The form of engine.where: an exception, and its file and line in the package.
CRASH = re.compile(r"^\w+(Error|Exception|Interrupt|Warning)\b.*\(([\w/.-]+\.py:\d+)\)$")


def crash(detail: str) -> str:
    """A crash's text with its numbers replaced, so that one defect of many families is one line."""
    where = CRASH.search(detail)
    assert where
    details_of = re.sub(r"\d+", "N", detail[: where.start(2) - 2]).replace("|", "\\|")
    return f"{details_of} (`{where[2]}`)"
