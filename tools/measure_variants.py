"""Runs the lab on variants of the tiny configs, and writes which differ from the plain config.

    python tools/measure_variants.py --set 'mlx-lm 0.31.3' [--variant yarn] [--jobs 2]
    python tools/measure_variants.py --write              only write the page

Each cell has two letters, as in the lab's evidence: without the patches and with every patch that
the release admits. A family that cannot be built as a variant is left out, as is one that the
variant does not change. Needs uv.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure_matrix
import release_sets
from measure_lab import SECONDS, has_models
from release_sets import ReleaseSet

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from mlx_patches.evidence import store  # noqa: E402
from mlx_patches.lab.child import BUILD  # noqa: E402
from mlx_patches.lab.record import Cells, details, letters  # noqa: E402
from mlx_patches.lab.variants import VARIANTS  # noqa: E402

EVIDENCE = ROOT / "tools" / "evidence" / "variants"
PAGE = ROOT / "docs" / "variants.md"
# The scenarios that depend on positions, masks and windows.
SCENARIOS = ("left-padded", "chunked-batch", "merge", "extend", "engine")
MEANINGS = {"g": "right", "r": "wrong", "n": "n/a", "i": "insensitive"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", default=[], help="this set")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only this variant")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="measure nothing, only write")
    options = parser.parse_args()
    for one in release_sets.load().values():
        if has_models(one) and one.name in options.sets and not options.write:
            measure(one, options.variant or VARIANTS, options.jobs)
    PAGE.write_text(page(load()))


def load() -> list[dict[str, Any]]:
    """The evidence of all sets, in the order of their names."""
    return [json.loads(file.read_text()) for file in sorted(EVIDENCE.glob("*.json"))]


def measure(one: ReleaseSet, variants: Sequence[str] | Mapping[str, Any], jobs: int) -> None:
    """Measure variants of every family of a set, and add them to its evidence."""
    file = EVIDENCE / f"{one.slug}.json"
    evidence: dict[str, Any] = {"set": one.name, "variants": {}}
    if file.exists():
        evidence = json.loads(file.read_text())
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    with release_sets.environment(one) as python:
        evidence["versions"] = measure_matrix.versions(python)
        for variant in variants:
            without = rows(python, jobs, variant, [one.distribution], "--unpatched")
            built = sorted({row["family"] for row in without if row["scenario"] != BUILD})
            with_ = rows(python, jobs, variant, built, "--patched", "--every-patch")
            evidence["variants"][variant] = {
                "without": only(letters(without), built),
                "with": letters(with_),
                "details": details([*with_, *without]),
            }
            file.write_text(json.dumps(evidence, indent=1) + "\n")
            print(one.name, variant, f"{len(built)} families", flush=True)


def rows(
    python: Path, jobs: int, variant: str, models: Sequence[str], *flags: str
) -> list[dict[str, Any]]:
    """Run the lab on a variant of these models; empty if none of them has it."""
    if not models:
        return []
    command = ["-m", "mlx_patches", "lab", "--variant", variant, "--jobs", str(jobs), *flags]
    command += [word for name in models for word in ("--model", name)]
    command += [word for name in SCENARIOS for word in ("--scenario", name)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        # 2: no family has this variant.
        measure_matrix.run(python, *command, "--out", str(out), seconds=SECONDS, codes=(0, 1, 2))
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def only(cells: Cells, families: Sequence[str]) -> Cells:
    """The cells of families that were built."""
    names = {family.partition(":")[2] for family in families}
    return {family: named for family, named in cells.items() if family in names}


def pairs(measured: Mapping[str, Cells]) -> dict[str, dict[str, str]]:
    """Family to scenario to both letters of one variant."""
    return {family: store.pairs_of(measured, family) for family in measured["without"]}


def differences(
    found: Mapping[str, Mapping[str, str]], plain: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str, str, str]]:
    """(family, scenario, letters as plain, letters as the variant) of each cell that differs."""
    for family, cells in found.items():
        for scenario, pair in cells.items():
            usual = plain.get(family, {}).get(scenario)
            if usual is not None and pair != usual:
                yield family, scenario, usual, pair


def page(evidence: Sequence[Mapping[str, Any]]) -> str:
    """The page: for each set and variant the families and cells, then each that differs."""
    lines = [
        "# Variants of the models' configs",
        "",
        "Generated by `python tools/measure_variants.py --write` from `tools/evidence/variants/`.",
        "The lab measures one tiny config of each family. Here it has another rope type, no",
        "sliding layers, keys and values of its own in every layer, or a tied or untied head, in",
        "every family whose code takes it and whose logits it changes.",
        f"Scenarios: {', '.join(SCENARIOS)}.",
        "To see one: `mlx-patches lab --variant longrope --model NAME`.",
        "",
        "| release set | variant | families | cells | wrong as released | wrong with the patches"
        " | differ from the plain config |",
        "|---|---|---|---|---|---|---|",
    ]
    told = []
    for one in evidence:
        usual = store.cell_pairs(store.load_set(*one["set"].split()) or {"without": {}})
        for variant in [name for name in VARIANTS if name in one["variants"]]:
            measured = one["variants"][variant]
            found = pairs(measured)
            cells = [pair for named in found.values() for pair in named.values()]
            count = sum(pair[0] != "n" for pair in cells)
            wrong = sum(pair[0] == "r" for pair in cells)
            still = sum(map(store.is_red, cells))
            differ = list(differences(found, usual))
            lines.append(
                f"| {one['set']} | {variant} | {len(found)} | {count} | {wrong} | {still}"
                f" | {len(differ)} |"
            )
            told += [(one["set"], variant, *cell, measured["details"]) for cell in differ]
    if not told:
        return "\n".join([*lines, "", "No cell differs."]) + "\n"
    lines += [
        "",
        "Cells that differ from those of the plain config, as released and with the patches:",
        "",
        "| release set | variant | family | scenario | plain | variant | why |",
        "|" + "---|" * 7,
    ]
    for name, variant, family, scenario, usual_pair, pair, said in told:
        why = said.get(family, {}).get(scenario, "").replace("|", "\\|")
        words = " | ".join(", ".join(MEANINGS.get(x, x) for x in two) for two in (usual_pair, pair))
        lines.append(f"| {name} | {variant} | {family} | {scenario} | {words} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
