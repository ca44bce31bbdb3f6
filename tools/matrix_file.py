"""Builds the matrix from the evidence and the hand-kept tables of known_defects.toml.

The package ships its compiled form. compat_matrix.yaml has the same content for readers and diffs;
nothing reads it back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import evidence_file
import lab_evidence
import model_rows
import patch_evidence
import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from patch_evidence import Evidence
from release_sets import ROOT

from mlx_patches.core.files import write as write_whole
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.core.patch import Patch
from mlx_patches.matrix.matrix import COMPILED, FORMAT, CompatMatrix
from mlx_patches.matrix.ranges import BrokenSet, Warned
from mlx_patches.patches import catalogue

MATRIX = ROOT / "compat_matrix.yaml"
KNOWN_DEFECTS = Path(__file__).parent / "known_defects.toml"
SCHEMA = 1
HEAD = """\
# Which released versions have which defect, and which models need which patches.
# `make write` writes this file from the evidence and tools/known_defects.toml; nothing reads it.
"""
RELEASES = "\n# -- from the evidence.json of each folder of patches --\n"
ALWAYS = "\n# Active whatever model is loaded, once a module of a target is imported.\n"
MODELS = """
# -- from tools/evidence/lab --
# Model module to the patches that it needs, by the distribution that implements it. A model without
# an entry, or without a list for a distribution, gets `default`: patches that cannot change a
# correct program. An empty list was measured: the model needs no patch there. Entries hold for the
# release sets in `measured`; in others a model gets the patches of its entry and of `default`.
"""
BROKEN_SETS = """
# -- from tools/known_defects.toml --
# Releases that can be installed together but do not work together.
"""
WARNINGS = """
# Defects that no patch of ours can repair: those of kernels, and those that only Apple's GPUs show.
# They were reported, not measured here.
"""


def write() -> None:
    """Write compat_matrix.yaml and the package's compiled form."""
    content = document()
    write_whole(MATRIX, yaml_text(content))
    write_whole(COMPILED, compile_text(content))


def load() -> CompatMatrix:
    return CompatMatrix(document())


def document() -> dict[str, Any]:
    """The whole matrix."""
    lab = lab_evidence.load()
    always = [patch.id for patch in catalogue.builtin() if is_for_every_model(patch)]
    return {
        "schema": SCHEMA,
        **build_rules(load_evidence()),
        "always": always,
        "measured": model_rows.list_measured(lab),
        "models": model_rows.rows(lab, always),
        **read_defects(),
    }


def is_for_every_model(patch: Patch) -> bool:
    if patch.every_model is not None or patch.optional:
        return bool(patch.every_model)
    modules = [target.module for target in patch.targets]
    return not any(one.startswith(package) for one in modules for package in MODEL_PACKAGES)


# -- the rules -------------------------------------------------------------------------------


def load_evidence() -> list[Evidence]:
    """All evidence, oldest releases first, without the targets that a release does not define."""
    found = patch_evidence.load()
    for one in found:
        for patch, targets in one["patches"].items():
            # A target that its module only imports is measured in the module that defines it.
            own = {path: cell for path, cell in targets.items() if cell["body"] is not None}
            one["patches"][patch] = own
    return found


def build_rules(evidence: list[Evidence]) -> dict[str, Any]:
    releases: dict[str, list[Evidence]] = {}
    for one in evidence:
        releases.setdefault(one["set"].split()[0], []).append(one)
    patches = {}
    for patch in catalogue.builtin():
        rules = {name: find_rule(patch.id, sets) for name, sets in releases.items()}
        if found := {name: rule for name, rule in rules.items() if rule}:
            patches[patch.id] = found
    versions = {name: [one["set"].split()[1] for one in sets] for name, sets in releases.items()}
    return {"releases": versions, "patches": patches}


def find_rule(patch: str, sets: list[Evidence]) -> dict[str, Any]:
    """The rule for a patch in one distribution; empty if no release has the defect."""
    seen = [
        (one["set"].split()[1], one["patches"][patch]) for one in sets if patch in one["patches"]
    ]
    affected = [release for release, targets in seen if is_repaired(patch, release, targets)]
    if not affected:
        return {}
    order = [release for release, _ in seen]
    first, last = order.index(affected[0]), order.index(affected[-1])
    holes = [release for release in order[first : last + 1] if release not in affected]
    ends = (f">={affected[0]}", f"<={affected[-1]}")
    rule: dict[str, Any] = {"affected": ",".join([*ends, *(f"!={one}" for one in holes)])}
    if order[last + 1 :]:
        rule["fixed"] = f">={order[last + 1]}"
    if bodies := target_bodies(patch, seen):
        rule["bodies"] = bodies
    return rule


def is_repaired(patch: str, release: str, targets: dict[str, Any]) -> bool:
    """Whether the release has the defect, which the patch repairs."""
    for target, seen in targets.items():
        if seen["with"] == "red":
            was = "broke" if seen["without"] == "green" else "did not repair"
            raise SystemExit(f"{patch} {was} {target} on {release}: {seen['detail']}")
    return any(seen["without"] == "red" for seen in targets.values())


def target_bodies(
    patch: str, seen: list[tuple[str, dict[str, Any]]]
) -> dict[str, dict[str, list[str]]]:
    """Target name to the fingerprints of ``affected`` and of ``sound`` code."""
    found: dict[str, dict[str, list[str]]] = {}
    for release, targets in seen:
        for target, cell in targets.items():
            body = cell["body"]
            if body is None or cell["without"] == "n/a":
                continue
            sides = found.setdefault(target.partition(":")[2], {"affected": [], "sound": []})
            mine, other = ("affected", "sound")[:: 1 if cell["without"] == "red" else -1]
            if body in sides[other]:  # the target's ``fingerprint_of`` must name more functions
                raise SystemExit(f"{patch} {target}: body {body} is red and green ({release})")
            if body not in sides[mine]:
                sides[mine].append(body)
    return {
        target: {side: bodies for side, bodies in sides.items() if bodies}
        for target, sides in found.items()
    }


# -- the hand-kept tables --------------------------------------------------------------------


def read_defects(path: Path = KNOWN_DEFECTS) -> dict[str, list[dict[str, Any]]]:
    """The tables ``broken_sets`` and ``warnings``."""
    if not path.exists():
        raise SystemExit(f"{path}: No such file; restore it with git")
    tables = evidence_file.read(path)
    kinds = {"broken_sets": BrokenSet, "warnings": Warned}
    if tables.keys() != kinds.keys():
        raise SystemExit(f"{path}: it has the tables {', '.join(kinds)}, and no others")
    for table, kind in kinds.items():
        for number, raw in enumerate(tables[table], 1):
            try:
                _check(kind(**raw))
            except (TypeError, ValueError) as error:
                problem = str(error).replace(f"{kind.__name__}.__new__() ", "")
                raise SystemExit(f"{path}: entry {number} of {table}: {problem}") from None
    return tables


def _check(entry: BrokenSet | Warned) -> None:
    """Check the values of an entry, whose keys are right."""
    for key, value in entry._asdict().items():
        wanted = {"when": dict, "threads": list}.get(key, str)
        if not isinstance(value, wanted) or (not value and wanted is not str):
            raise ValueError(f"{key} is not a filled {wanted.__name__}: {value!r}")
    for name, specifier in entry.when.items():
        try:
            SpecifierSet(specifier)
        except (InvalidSpecifier, AttributeError, TypeError):
            raise ValueError(f"when.{name} is not a version range: {specifier!r}") from None


# -- the two forms ---------------------------------------------------------------------------


def compile_text(content: Mapping[str, Any]) -> str:
    form = {"format": FORMAT, "document": compile_document(content)}
    return json.dumps(form, separators=(",", ":"), sort_keys=True) + "\n"


def compile_document(content: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the answer for each measured release filled in.

    A patch's rules are JSON in a string: start-up parses those of the patches that it decides.
    """
    matrix = CompatMatrix(content)
    made: dict[str, Any] = json.loads(json.dumps(content))
    for patch, rules in made["patches"].items():
        for distribution, raw in rules.items():
            rule = matrix.rule(patch, distribution)
            assert rule is not None
            decided = map(rule.decide, matrix.releases.get(distribution, ()))
            raw["decided"] = "".join(decision[0] for decision in decided)
        made["patches"][patch] = json.dumps(rules, separators=(",", ":"))
    return made


def yaml_text(content: Mapping[str, Any]) -> str:
    comments = {"releases": RELEASES, "always": ALWAYS, "measured": MODELS}
    comments |= {"broken_sets": BROKEN_SETS, "warnings": WARNINGS}
    tables = {name: table for name, table in content.items() if name != "schema"}
    parts = (f"{comments.get(name, '')}{dump({name: table})}" for name, table in tables.items())
    return "".join([HEAD, f"schema: {content['schema']}\n", *parts])


def dump(content: Any) -> str:
    return yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, width=math.inf, default_flow_style=None
    )


class _Dumper(yaml.SafeDumper):
    def choose_scalar_style(self) -> str:
        return super().choose_scalar_style().replace("'", '"')
