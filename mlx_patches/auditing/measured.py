"""The verdicts on the models of the installed releases, from the evidence."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from ..activation.session import Session
from ..core.distributions import Installed, source_file
from ..core.model_files import CONSENT
from ..core.packages import CORE, MODEL_PACKAGES
from ..core.patch import Patch, Target
from ..core.registry import Registry
from ..evidence import outside, store
from ..matrix.gate import Gate
from . import installed_code
from .models import may_slide
from .modules import (
    MODEL_CODE,
    Find,
    metal_branches,
    modules_of,
    package_of_models,
    runs,
    source_files,
)
from .recommend import load_summary
from .verdict import Measured, ModelVerdict, judge

Needs = Callable[[Patch, Target], bool]
# Distribution to its evidence.
Evidence = Mapping[str, Mapping[str, Any]]
# Distribution to model to the patches that its cells need, for models with every repair traced.
Needed = Mapping[str, Mapping[str, Sequence[str]]]


def verdicts_of_model(
    current: Session,
    families: Mapping[str, str],
    needs: Needs,
    measured: Evidence | None = None,
    config: dict[str, Any] | None = None,
    model_type: str = "",
    own_code: str = "",
) -> tuple[ModelVerdict, ...]:
    """The verdict on a model in each package that implements it.

    Args:
        families: distribution to the module that implements the model in it.
        measured: distribution to evidence of the model's own config, which replaces its family's
            evidence.
        config: the model's own config; scenarios that need layers that it lacks are skipped.
        model_type: the model's name as the user typed it, which other families may implement.
        own_code: how the model's folder runs its own code, which no family's evidence covers.
    """
    found = []
    for distribution, family in families.items():
        here = current.installed(distribution)
        if here is None:
            continue
        where = installed_code.match_family(here, family)
        facts = collect_facts(current, here, family, where, needs, model_type)
        evidence = facts.evidence
        module = f"{package_of_models(distribution)}.{family}"
        if evidence and config is not None and not may_slide(config, module):
            evidence = _without_windows(current, evidence, family)
            facts = replace(facts, evidence=evidence)
        if measured is not None:
            evidence = _with_own(measured.get(distribution), evidence, family)
            facts = replace(facts, evidence=evidence, note=evidence["note"] if evidence else "")
        if own_code:
            why = f"this folder runs its own code ({own_code}); --measure runs it with {CONSENT}=1"
            own = (measured or {}).get(distribution)
            facts = Measured(own, own["note"] if own else why)
        ids = partial(_likely, current, distribution, family, needs, cache(source_file))
        found.append(judge(facts, distribution, here.version, family, ids, config))
    return tuple(found)


def collect_facts(
    current: Session,
    here: Installed,
    family: str,
    where: installed_code.Match,
    needs: Needs,
    model_type: str = "",
) -> Measured:
    """All that was measured of a family of an installed release, for every kind of report."""
    evidence = store.load_set(where.set)
    note = _note(current, where.note(here), evidence)
    marked = store.metal_branches(where.set)
    if marked is None:
        metal = metal_branches(package_of_models(here.name), family, cache(source_file))
    else:
        metal = (*marked.get(family, ()),)
    solo = [  # without them, a single request gets wrong output
        patch.id
        for name in dict.fromkeys((family, model_type))
        for patch in current.registry.wrong_solo.get(name, ())
        if any(needs(patch, t) for t in patch.targets if t.distribution == here.name)
    ]
    beside = outside.beside(where.set, family, model_type)
    pictures = installed_code.find_images(here, family, where.set)
    return Measured(evidence, note, metal, (*solo,), *beside, pictures)


def _with_own(
    own: Mapping[str, Any] | None, evidence: Mapping[str, Any] | None, family: str
) -> Mapping[str, Any] | None:
    """Evidence of a model's own config, completed by its family's.

    The patches that repair a scenario of the family are assumed to repair it with this config. A
    scenario that timed out is assumed to have the family's result.
    """
    if not own or not evidence:
        return own
    result = {**own, "needs": {family: evidence.get("needs", {}).get(family, {})}}
    if own["note"]:
        result["note"] = f"{own['note']}: these are judged as in other {family} models"
        for part in ("without", "with", "details_without", "details_with"):
            plain = evidence.get(part, {}).get(family, {}).items()
            cells = {name: cell for name, cell in plain if "@" not in name}
            result[part] = {family: cells | own.get(part, {}).get(family, {})}
    return result


def _without_windows(
    current: Session, evidence: Mapping[str, Any], family: str
) -> Mapping[str, Any]:
    """Evidence for a config without sliding windows: defects of their caches become "n"."""
    windows = {
        patch.id
        for patch in current.registry.each_declared()
        if all("RotatingKVCache." in target.name for target in patch.targets)
    }
    needs = evidence.get("needs", {}).get(family, {})
    spared = {name for name, ids in needs.items() if ids and windows.issuperset(ids)}
    result = dict(evidence)
    for part in ("without", "with"):
        cells = evidence.get(part, {}).get(family, {})
        result[part] = {family: {n: "n" if n in spared else cells[n] for n in cells}}
    return result


def verdicts_of_all(current: Session, needs: Needs) -> tuple[ModelVerdict, ...]:
    """The verdicts on every family that was measured in an installed release."""
    found, find = [], source_files().get
    for here in filter(None, map(current.installed, MODEL_PACKAGES.values())):
        for family, where in installed_code.match_families(here, find):
            facts = collect_facts(current, here, family, where, needs)
            ids = partial(_likely, current, here.name, family, needs, find)
            found.append(judge(facts, here.name, here.version, family, ids))
    return tuple(found)


def find_affected(
    gate: Gate, registry: Registry, needs: Needs, measured: Needed
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Model to distribution to the patches that it needs in this environment.

    Measurements of a model in this release override its entry in the matrix, which may come from
    other releases. In both cases a patch counts only if the model runs a target that needs it: a
    target in the model's own module, in a module that it imports, or in its distribution's engine.
    Targets in other families, or in distributions that the model does not use, are ignored.

    Args:
        measured: the result of ``list_patches``.
    """

    @cache
    def find_targets(patch_id: str) -> tuple[Target, ...]:
        patch = registry.find_declared(patch_id)
        return tuple(target for target in patch.targets if needs(patch, target))

    find = source_files().get
    entries = gate.matrix.models
    models = dict.fromkeys(model for known in (entries, *measured.values()) for model in known)
    affected: dict[str, dict[str, tuple[str, ...]]] = {}
    for model in models:
        for package, distribution in MODEL_PACKAGES.items():
            ids = measured.get(distribution, {}).get(model)
            if ids is None:
                ids = gate.patches_for(model, distribution) if model in entries else ()
            ids = [id_ for id_ in ids if id_ in registry and find_targets(id_)]
            if not ids or find(f"{package}.{model}") is None:
                continue
            reached = modules_of(package, model, find)
            ids = [id_ for id_ in ids if any(runs(t, package, reached) for t in find_targets(id_))]
            if ids:
                affected.setdefault(model, {})[distribution] = tuple(ids)
    return affected


def list_patches(verdicts: Iterable[ModelVerdict]) -> Needed:
    found: dict[str, dict[str, Sequence[str]]] = {}
    for one in verdicts:
        if one.result:
            found.setdefault(one.distribution, {})[one.family] = one.patches
    return found


def possible(
    current: Session,
    distribution: str,
    entry: Sequence[str],
    needs: Needs,
    modules: Collection[str] | None = None,
) -> list[str]:
    """The patches that a family may need, for repairs that were not traced.

    These are the patches of its entry, and the patches of model code that are for every model.

    Args:
        modules: the modules that the model runs; by default every module counts.
    """
    found = []
    for id_ in dict.fromkeys((*current.matrix.always, *entry)):
        if id_ not in current.registry:
            continue
        targets = [t for t in current.registry.find_declared(id_).targets if t.distribution in CORE]
        if id_ not in entry:
            targets = [t for t in targets if t.module.startswith(MODEL_CODE)]
        if modules is not None:
            package = package_of_models(distribution)
            targets = [t for t in targets if runs(t, package, modules)]
        if any(needs(current.registry.find_declared(id_), target) for target in targets):
            found.append(id_)
    return found


def list_reached(families: Mapping[str, str]) -> set[str]:
    """The modules that these families run, by distribution."""
    places = [(package_of_models(name), family) for name, family in families.items()]
    return set().union(*(modules_of(*place, cache(source_file)) for place in places))


def is_reached(module: str, reached: Collection[str]) -> bool:
    """Whether a module has no models, or the families run it."""
    return module in reached or not module.startswith(MODEL_CODE)


def always_met(current: Session, reached: Collection[str]) -> set[str]:
    """The patches for every model, except those of model code that no family runs."""
    return {
        id_
        for id_ in current.matrix.always
        if id_ in current.registry
        and any(
            is_reached(one.module, reached) for one in current.registry.find_declared(id_).targets
        )
    }


def _likely(
    current: Session, distribution: str, family: str, needs: Needs, find: Find
) -> list[str]:
    """The possible patches whose targets the family runs and that its cells may need.

    A patch is skipped if a release with its defect was traced and no family of it needed the patch.
    """
    entry = current.gate.patches_for(family, distribution)
    reached = modules_of(package_of_models(distribution), family, find)
    ids = possible(current, distribution, entry, needs, reached)
    summary = _load_summary()
    sets, seen = summary["traced"], {*summary["needed"]}
    seen |= set(entry) - set(current.matrix.patches_for("default", distribution))

    def was_tried(id_: str) -> bool:
        releases = (name.split() for name in sets)
        rules = [(current.matrix.rule(id_, name), version) for name, version in releases]
        return any(
            rule and version in rule.releases and rule.decide(version) == "affected"
            for rule, version in rules
        )

    return [id_ for id_ in ids if id_ in seen or not was_tried(id_)] or ids


_load_summary = cache(load_summary)


def _note(current: Session, code: str, evidence: Mapping[str, Any] | None) -> str:
    """How the installed releases differ from those of the evidence."""
    mlx = current.installed("mlx")
    measured = evidence["versions"].get("mlx") if evidence and mlx else None
    differs = measured and mlx and measured != mlx.version
    other = f"{evidence['set']} was measured with mlx {measured}" if evidence and differs else ""
    return "; ".join(filter(None, (code, other)))
