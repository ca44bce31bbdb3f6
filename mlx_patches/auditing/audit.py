"""The audit: the installed releases, each patch's verdict on them, and the patches in effect.

It reads live objects for the patches of this process and source files for all others, so it imports
neither MLX nor a release.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from os import PathLike
from typing import Any

from .. import __version__
from ..activation import boot, contributions, settings, started
from ..activation.session import Session, check_names, session
from ..core.distributions import Installed, canonical
from ..core.errors import MlxPatchesError
from ..core.files import quote
from ..core.manager import explain_held_back
from ..core.model_types import implementations
from ..core.outcome import IN_EFFECT, NOT_NEEDED, REPAIRED, Outcome, Status, Verdict
from ..core.packages import CORE, DISTRIBUTIONS, MODEL_PACKAGES, SERVERS, package_of
from ..core.patch import Patch, Target
from ..core.record import fields
from ..core.resolve import in_file
from ..evidence.store import place_measured
from ..evidence.words import FAIL_ON, NOT_MEASURED, SEVERITIES, choose_severities
from ..matrix.ranges import BrokenSet, Warned
from . import conflicts, hosts, measured, preflight
from .models import ModelFolder, find_unused_stops, folder_of, to_name, unknown_type
from .modules import MODEL_CODE
from .verdict import ModelVerdict, PatchState, headline, patch_severity

JSON_SCHEMA = 1
ANY = frozenset(SEVERITIES)
_OPTIONAL = "optional: request it by id"
# The reason that a process reports for a target whose code it has not seen.
_BY_NUMBER = (Status.PENDING, Status.FIXED_UPSTREAM, Status.NOT_AFFECTED)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model type: the packages that implement it and the patches that its entries name.

    ``rows`` maps a distribution to the patches of the model's entry in the matrix, ``families`` to
    the module that implements the model.
    """

    model_type: str
    folder: ModelFolder | None
    rows: dict[str, tuple[str, ...]]
    known: bool
    families: dict[str, str] = field(default_factory=dict)

    @property
    def own_patches(self) -> tuple[str, ...]:
        """Patches that the folder needs because a release does not use all its stop tokens."""
        return ("extra-eos",) if self.unused_stops else ()

    @property
    def unused_stops(self) -> tuple[int, ...]:
        """The folder's stop tokens that an installed release does not use."""
        if self.folder is None:
            return ()
        packages = [package_of(distribution) for distribution in self.families]
        unused = [id_ for package in packages for id_ in find_unused_stops(self.folder, package)]
        return tuple(dict.fromkeys(unused))

    def as_dict(self) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "folder": str(self.folder.path) if self.folder else None,
            "own_code": self.folder.own_code if self.folder else "",
            "eos_token_ids": self.folder.eos if self.folder else {},
            **fields(self, "known", "rows"),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Audit:
    """The report. ``outcomes`` has one entry per patch and target.

    ``verdicts`` are about the model, or about every measured family of the installed releases.
    ``unaudited`` has the reasons why nothing could be audited, ``environment`` is the prefix of the
    audited environment.
    ``measured`` is (device, dtype) if the model's own config was measured for this report.
    ``accepted`` has the patches whose defects the user accepts.
    """

    distributions: tuple[Installed, ...]
    broken_sets: tuple[BrokenSet, ...]
    outcomes: tuple[Outcome, ...]
    models: dict[str, dict[str, tuple[str, ...]]]
    active: bool
    model: ModelReport | None = None
    origins: dict[str, str] = field(default_factory=dict)
    host: str = ""
    host_report: hosts.HostReport | None = None
    foreign: tuple[conflicts.Foreign, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    verdicts: tuple[ModelVerdict, ...] = ()
    unaudited: tuple[str, ...] = ()
    environment: str = sys.prefix
    measured: tuple[str, str] | None = None
    accepted: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        count = sum(map(self.concerns, self.open))
        many = f"{count} defect{'' if count == 1 else 's'} not repaired"
        installed = ", ".join(map(str, self.distributions)) or "no MLX package"
        return f"<Audit: {many}; exit code {self.exit_code()}; {installed}; {self.environment}>"

    def ignoring(self, patches: Iterable[str]) -> Audit:
        """The report, with the defects of these patches marked as left open by choice."""
        names = check_names("patches", "ids", patches)
        ids = {session().registry.find_declared(name).id for name in names}
        ids &= {one.patch for one in self.outcomes if not one.by_choice}
        outcomes = [
            one._replace(by_choice=True) if one.patch in ids else one for one in self.outcomes
        ]
        return replace(self, outcomes=tuple(outcomes), accepted=self.accepted | ids)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The installed releases without evidence of their code."""
        measured = {one.distribution for one in self.verdicts if one.result}
        unknown = {one.distribution for one in self.verdicts} - measured
        return tuple(str(one) for one in self.distributions if one.name in unknown)

    @property
    def findings(self) -> tuple[str, ...]:
        """One line per defect or problem that is not repaired here."""
        lines = [*self.problems]
        if self.model is not None:
            lines += [
                headline(one, self.here(), self.model.model_type)
                for one in self.verdicts
                if one.exit_code(self.here(), ANY) == 1
            ]
        lines += [
            f"{o.patch} {o.target}: {o.status}: {o.reason}"
            for o in self.outcomes
            if o.finding and self.concerns(o.patch)
        ]
        if self.host_report and self.host_report.unmet:
            lines.append(self.host_report.advice)
        return (*lines, *self.unknown)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems that no patch repairs, one line each."""
        lines = [f"{broken.reason}: {broken.remedy}" for broken in self.broken_sets]
        if self.model and self.model.folder and self.model.folder.problem:
            lines.append(self.model.folder.problem)
        return (*lines, *(one.finding for one in self.foreign if one.finding))

    def concerns(self, patch: str) -> bool:
        """Whether the report covers a patch; with a model, only the patches that repair it."""
        if self.model is None:
            return True
        return patch in self.model.own_patches or any(patch in one.patches for one in self.verdicts)

    def here(self, by_choice: bool = True) -> PatchState:
        """The state of the patches here; ``by_choice`` counts switched-off ones as missing."""
        seen: dict[str, set[Status]] = {}
        missing: dict[str, set[str]] = {}
        for one in self.outcomes:
            seen.setdefault(one.patch, set()).add(one.status)
            if one.status not in REPAIRED and (by_choice or not one.by_choice):
                missing.setdefault(one.patch, set()).add(one.target.partition(":")[0])
        partly = {
            id_: modules
            for id_, modules in missing.items()
            if seen[id_] & IN_EFFECT and all(name.startswith(MODEL_CODE) for name in modules)
        }
        # Needed according to the evidence, but no target is installed.
        absent = {id_ for id_, statuses in seen.items() if statuses == {Status.ABSENT}}
        active = self.active or (not by_choice and any(one.by_choice for one in self.outcomes))
        some = bool(missing or self.accepted) and not self.active
        return PatchState(active, frozenset(missing) | absent, partly, some)

    @property
    def needed(self) -> tuple[str, ...]:
        """The patches that the installed releases need, in effect or not.

        Optional ones count only if ``MLX_PATCHES_ENABLE`` names them: a profile adds no defect.
        """
        current = session()
        needed = dict.fromkeys(o.patch for o in self.outcomes if o.status not in NOT_NEEDED)
        optional = {one.id for one in current.registry.each_declared() if one.optional}
        return tuple(id_ for id_ in needed if id_ not in optional - {*current.enabled})

    @property
    def refusing(self) -> tuple[str, ...]:
        """The optional patches of the profile ``security`` that apply to the installed releases."""
        limits = session().registry.in_profiles(["security"])
        ids = (o.patch for o in self.outcomes if o.reason.startswith(_OPTIONAL))
        return tuple(dict.fromkeys(id_ for id_ in ids if id_ in limits))

    @property
    def open(self) -> tuple[str, ...]:
        """The needed patches that are not in effect."""
        missing = self.here().missing
        return tuple(id_ for id_ in self.needed if id_ in missing)

    def exit_code(self, strict: bool = False, fail_on: Collection[str] = FAIL_ON) -> int:
        """0: nothing is wrong, or everything is repaired here; 1: a finding; 2: not measured.

        Args:
            strict: count defects that the user chose not to repair as findings, and without a
                model the families that stay wrong with the patches.
        """
        fail_on = choose_severities(check_names("fail_on", "severities", fail_on))
        if self.problems:
            return 1
        if self.unaudited:
            return 2
        if self.unknown or (self.host_report and self.host_report.unmet):
            return 1
        open_ = {o.patch for o in self.outcomes if o.finding or (strict and o.by_choice)}
        if self.model is not None:
            here = self.here(by_choice=strict)
            codes = {one.exit_code(here, fail_on) for one in self.verdicts}
            if any(patch_severity(id_) in fail_on for id_ in open_ & set(self.model.own_patches)):
                return 1
            return 1 if 1 in codes else max(codes, default=2)
        unknown = {o.patch for o in self.outcomes if o.finding and o.status is Status.DRIFTED}
        found = {patch_severity(id_) for id_ in open_ - unknown}
        for one in self.verdicts if strict else ():
            found |= {cell.severity for cell in one.wrong_with_patches}
            found |= {cell.severity for cell in one.fails_with_images(PatchState(active=True))}
        new = not all(one.result for one in self.verdicts)
        return 1 if found & set(fail_on) else 2 if unknown or new else 0

    def as_dict(self, cells: bool = False) -> dict[str, Any]:
        """The JSON form; docs/audit-json.md describes it.

        Args:
            cells: include every scenario of every family; a model's verdicts always have them.
        """
        here, cells = self.here(), cells or self.model is not None
        return {
            "schema": JSON_SCHEMA,
            "mlx_patches": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            **fields(self, "environment", "active", "host", "unaudited", "unmeasured"),
            "measured": self.measured
            and dict(zip(("device", "dtype"), self.measured, strict=True)),
            "verdicts": [one.as_dict(here, cells) for one in self.verdicts],
            "distributions": [
                fields(one, "name", "version", "commit", "editable") for one in self.distributions
            ],
            "broken_sets": [one._asdict() for one in self.broken_sets],
            "warnings": [fields(one, "effect", "remedy", "threads") for one in self.warnings],
            "patches": [
                {
                    **o.as_dict(),
                    "severity": patch_severity(o.patch),
                    "fixed_in": find_fixed(o),
                    "origin": self.origins.get(o.patch, "mlx-patches"),
                }
                for o in self.outcomes
            ],
            "models": self.models,
            "model": self.model.as_dict() if self.model else None,
            "host_report": self.host_report.as_dict() if self.host_report else None,
            "foreign": [one.as_dict() for one in self.foreign],
            "findings": list(self.findings),
            "exit_code": self.exit_code(),
        }


def audit(
    model: str | PathLike[str] | None = None,
    host: str | None = None,
    models: bool = True,
    evidence: measured.Evidence | None = None,
) -> Audit:
    """See ``mlx_patches.audit``.

    Args:
        models: include the table of affected models.
        evidence: distribution to evidence of the model's own config, measured for this audit.
    """
    current = preflight.session_of_readable()
    if host is not None and not (isinstance(host, str) and canonical(host).strip("- ")):
        raise MlxPatchesError(f"host must be the name of a distribution, not {quote(repr(host))}")
    host = None if host is None else SERVERS.get(host, host)
    report = describe_model(current, model) if model is not None else None
    declared = contributions.hosts(current.disabled)
    names = dict.fromkeys((*CORE, *hosts.KNOWN, *declared, *([host] if host else ())))
    installed = [current.installed(name) for name in names]
    distributions = tuple(one for one in installed if one is not None)
    matrix = current.matrix
    whens = [*(one.when for one in matrix.broken_sets), *(one.when for one in matrix.warnings)]
    known = map(current.installed, sorted({name for when in whens for name in when}))
    versions = {one.name: one.version for one in known if one is not None}
    # Besides the CPU.
    devices = ("metal",) if platform.system() == "Darwin" else ()

    needed = cache(partial(may_need, current))
    relevant = tuple(id_ for id_ in current.registry.ids() if current.relevant(id_))
    reached = measured.list_reached(report.families if report else {})
    if report is None:
        verdicts = measured.verdicts_of_all(current, needed)
        ids, every = relevant, verdicts
    else:
        verdicts = judge_model(current, report, needed, evidence)
        every = measured.verdicts_of_all(current, needed) if models else ()
        named = {id_ for row in report.rows.values() for id_ in row}
        named |= measured.always_met(current, reached)
        named |= {id_ for one in verdicts for id_ in one.patches}
        ids = tuple(id_ for id_ in relevant if id_ in named)
    unused = set() if host is None else set(DISTRIBUTIONS.values()) - hosts.list_used(host)
    verdicts = tuple(one for one in verdicts if one.distribution not in unused)
    outcomes = tuple(
        outcome
        for outcome in outcomes_of(map(current.registry.find_declared, ids), host, reached)
        if outcome.distribution not in unused
        if report is None or outcome.distribution in MODEL_PACKAGES.values()
    )
    ran = any(one.verdict != NOT_MEASURED for one in verdicts)
    broken = tuple(b for b in matrix.broken_sets if b.matches(versions))
    host_report = None
    if host is not None:
        found = current.installed(host)
        other = "" if _active(current, host) else started.host
        host_report = hosts.report(found, host, distributions, broken, outcomes, other)
    return Audit(
        distributions=distributions,
        broken_sets=broken,
        warnings=tuple(one for one in matrix.warnings if one.matches(versions, devices)),
        outcomes=outcomes,
        models=measured.find_affected(
            current.gate, current.registry, needed, measured.list_patches(every)
        )
        if models
        else {},
        active=_active(current),
        model=report,
        host=started.host,
        host_report=host_report,
        foreign=(*conflicts.find_replaced(), *conflicts.find_marked()),
        unknown=current.unknown,
        verdicts=verdicts,
        unaudited=preflight.explain_unaudited(
            current, relevant, report.families if report else {}, _list_declared
        ),
        measured=next(map(place_measured, (evidence or {}).values()), None) if ran else None,
        origins={id_: current.registry.origin(id_) for id_ in ids if current.registry.origin(id_)},
    )


def find_fixed(outcome: Outcome) -> str:
    """The releases that fixed a defect themselves; empty if none did."""
    rule = session().matrix.rule(outcome.patch, outcome.distribution)
    return rule.fixed if rule else ""


def outcomes_of(
    patches: Iterable[Patch], host: str | None = None, reached: Collection[str] = ()
) -> Iterator[Outcome]:
    """The state of patches' targets here, or in processes of a host.

    It is taken from this process if it has decided it, and from the files if not.

    Args:
        reached: the modules that an audited model runs; a patch's targets in other models are
            skipped, unless the patch is needed only there.
    """
    current = session()
    known = {(o.patch, o.target): o for o in current.status(held_elsewhere=True)}
    active, requested = _active(current, host), current.optional_requested()
    for patch in patches:
        found = []
        for target in patch.targets:
            here = known.get((patch.id, target.path))
            # The process has not seen the code of a module that it has not imported.
            if here is None or (target.module not in sys.modules and here.status in _BY_NUMBER):
                here = _describe_unrequested(current, patch, target, active, requested)
            found.append((target, here))
        decided = []
        for target, one in found:
            may_apply = one.status in (Status.PENDING, Status.DISABLED) and not one.by_choice
            if may_apply and (reason := explain_held_back(target, found)):
                one = one._replace(status=Status.DRIFTED, reason=reason)
            decided.append((measured.is_reached(target.module, reached), one))
        own = [one for met, one in decided if met]
        whole = not reached or all(one.status in NOT_NEEDED for one in own)
        yield from (one for met, one in decided if met or whole)


def _active(current: Session, host: str | None = None) -> bool:
    """Whether processes of this host are patched; without a host, those that `enable` named."""
    limits = [canonical(SERVERS.get(one, one)) for one in started.host.split(", ") if one]
    by_itself = boot.active() or bool(limits and (not host or canonical(host) in limits))
    return current.active or (by_itself and not settings.off())


def _describe_unrequested(
    current: Session, patch: Patch, target: Target, active: bool, requested: Collection[str]
) -> Outcome:
    verdict = judge_file(current, patch, target)
    status, by_choice = Status.DISABLED, True
    if not verdict.ok:
        status, reason, by_choice = verdict.status, verdict.reason, False
    elif off := current.why_off(patch.id) or ("restored" if current.has_restored(patch.id) else ""):
        reason = off
    elif patch.optional and patch.id not in requested:
        reason = f"{_OPTIONAL}; {verdict.reason}"
    elif active and (left_out := current.why_left_out(patch.id)):
        reason = left_out
    elif active:
        status, by_choice = Status.PENDING, False
        always = patch.id in current.matrix.always
        reason = f"waits for {'its module' if always else 'a model that needs it'}"
        rule = current.matrix.rule(patch.id, target.distribution)
        reason = rule.add_note(reason) if rule else reason
    elif settings.off():
        reason = f"{verdict.reason}; switched off by {settings.SWITCH}"
    else:
        reason, by_choice = f"{verdict.reason}; mlx_patches is not active here", False
    return Outcome(patch.id, target.distribution, target.path, status, reason, by_choice)


def judge_file(current: Session, patch: Patch, target: Target) -> Verdict:
    if current.installed(target.distribution) is None:
        return current.gate.decide(patch, target, None)
    return current.gate.decide(patch, target, in_file(target, _list_declared(target.module)))


def may_need(current: Session, patch: Patch, target: Target) -> bool:
    """Whether a target's code has the defect, or was not measured and may have it."""
    verdict = judge_file(current, patch, target)
    return verdict.ok or verdict.status is Status.DRIFTED


def _list_declared(module: str) -> tuple[str, ...]:
    """All names that patches declare in a file, so that each file is parsed once."""
    return tuple(_map_declared().get(module.rpartition(".")[2], ()))


@cache
def _map_declared() -> dict[str, dict[str, None]]:
    names: dict[str, dict[str, None]] = {}
    for target in (t for patch in session().registry.each_declared() for t in patch.targets):
        own = names.setdefault(target.module.rpartition(".")[2], {})
        own.update(dict.fromkeys(target.mentions))
    return names


def describe_model(current: Session, model: str | PathLike[str]) -> ModelReport:
    name = to_name(model)
    folder = folder_of(name)
    if folder is not None:
        name = folder.model_type
    found = folder.implementations() if folder else implementations(name)
    installed = [d for d in MODEL_PACKAGES.values() if current.installed(d)]
    if not found and installed:
        raise unknown_type(name, installed, current.matrix.models)
    rows = {
        distribution: current.gate.patches_for(family, distribution)
        for distribution, family in found.items()
    }
    known = any(family in current.matrix.models for family in found.values())
    return ModelReport(quote(name), folder, rows, known, found)


def judge_model(
    current: Session,
    report: ModelReport,
    needed: measured.Needs,
    evidence: measured.Evidence | None = None,
) -> tuple[ModelVerdict, ...]:
    config = report.folder.config if report.folder else None
    return measured.verdicts_of_model(
        *(current, report.families, needed, evidence, config, report.model_type),
        own_code=report.folder.own_code if report.folder else "",
    )
