"""What is installed, what each patch finds there, and what is in effect.

Looks at the live objects for what this process has patched, and at the source files for the
rest, so that it needs no import of MLX or of any release.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .. import __version__
from ..activation import boot, contributions, settings
from ..activation.session import Session, session
from ..core.distributions import Installed, canonical
from ..core.errors import MlxPatchesError
from ..core.files import quoted
from ..core.outcome import Outcome, Status, Verdict
from ..core.packages import MODEL_PACKAGES
from ..core.patch import Patch, Target
from ..core.resolve import in_file
from ..matrix.matrix import BrokenSet, Warned
from . import conflicts, hosts
from .affected import affected_models, measured_here
from .models import ModelFolder, implementations, read_folder

JSON_SCHEMA = 1
CORE = ("mlx", "mlx-lm", "mlx-vlm")


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model type: the packages that implement it and the patches that its rows name."""

    model_type: str
    folder: ModelFolder | None
    rows: dict[str, tuple[str, ...]]
    known: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """The report. ``outcomes`` has one entry a patch and target."""

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

    @property
    def findings(self) -> tuple[str, ...]:
        """One line for each thing that is not as it should be."""
        lines = [f"{broken.reason}: {broken.remedy}" for broken in self.broken_sets]
        lines += [
            f"{o.patch} {o.target}: {o.status}: {o.reason}" for o in self.outcomes if o.finding
        ]
        if self.model and self.model.folder and self.model.folder.problem:
            lines.append(self.model.folder.problem)
        lines += [one.finding for one in self.foreign if one.finding]
        lines += self.unknown
        if self.host_report and self.host_report.unmet:
            lines.append(self.host_report.advice)
        return tuple(lines)

    def exit_code(self, strict: bool = False) -> int:
        """0 where nothing is needed or all is in effect, 1 for a finding.

        With ``strict`` a defect that the user chose not to repair is a finding too.
        """
        chosen = strict and any(o.by_choice for o in self.outcomes)
        return 1 if self.findings or chosen else 0

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; docs/audit-json.md describes it."""
        return {
            "schema": JSON_SCHEMA,
            "mlx_patches": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "active": self.active,
            "host": self.host,
            "distributions": [
                {"name": d.name, "version": d.version, "commit": d.commit, "editable": d.editable}
                for d in self.distributions
            ],
            "broken_sets": [
                {"when": dict(b.when), "reason": b.reason, "remedy": b.remedy}
                for b in self.broken_sets
            ],
            "warnings": [
                {"effect": one.effect, "remedy": one.remedy, "threads": list(one.threads)}
                for one in self.warnings
            ],
            "patches": [
                {**o.as_dict(), "origin": self.origins.get(o.patch, "mlx-patches")}
                for o in self.outcomes
            ],
            "models": {
                model: {name: list(ids) for name, ids in rows.items()}
                for model, rows in self.models.items()
            },
            "model": _model_dict(self.model),
            "host_report": self.host_report.as_dict() if self.host_report else None,
            "foreign": [one.as_dict() for one in self.foreign],
            "findings": list(self.findings),
            "exit_code": self.exit_code(),
        }


def audit(model: str | None = None, host: str | None = None) -> Audit:
    """See ``mlx_patches.audit``."""
    current = session()
    report = _model_report(current, model) if model is not None else None
    declared = contributions.hosts(current.disabled)
    names = dict.fromkeys((*CORE, *hosts.KNOWN, *declared, *([host] if host else ())))
    installed = [current.installed(name) for name in names]
    distributions = tuple(one for one in installed if one is not None)
    versions = _versions(current)
    ids = tuple(id_ for id_ in current.registry.ids() if current.relevant(id_))
    if report is not None:
        named = {id_ for row in report.rows.values() for id_ in row} | set(current.matrix.always)
        ids = tuple(id_ for id_ in ids if id_ in named)
    active = _active(current, host)
    live = {(o.patch, o.target): o for o in current.status(held_elsewhere=True)}
    outcomes = tuple(
        live.get((patch.id, target.path)) or _unasked(current, patch, target, active)
        for patch in map(current.registry.get, ids)
        for target in patch.targets
        if report is None or target.distribution in report.rows
    )
    broken = tuple(b for b in current.matrix.broken_sets if b.matches(versions))
    host_report = None
    if host is not None:
        found = current.installed(host)
        other = "" if active else boot.limited_to()
        host_report = hosts.report(found, host, distributions, broken, outcomes, other)
    return Audit(
        distributions=distributions,
        broken_sets=broken,
        warnings=tuple(one for one in current.matrix.warnings if one.matches(versions, _devices())),
        outcomes=outcomes,
        models=affected_models(
            current.matrix,
            current.registry,
            lambda patch, target: judge_file(current, patch, target).ok,
            measured_here(current.installed),
        ),
        active=_active(current),
        model=report,
        host=boot.limited_to(),
        host_report=host_report,
        foreign=(*conflicts.replaced(), *conflicts.marked()),
        unknown=current.unknown,
        origins={id_: current.registry.origin(id_) for id_ in ids if current.registry.origin(id_)},
    )


def _versions(current: Session) -> dict[str, str]:
    """The version of every distribution that the matrix has a word on sets of."""
    matrix = current.matrix
    whens = [*(one.when for one in matrix.broken_sets), *(one.when for one in matrix.warnings)]
    names = {name for when in whens for name in when}
    found = [current.installed(name) for name in sorted(names)]
    return {one.name: one.version for one in found if one is not None}


def _devices() -> tuple[str, ...]:
    """The devices that MLX computes on here beside the CPU, as far as the platform says."""
    return ("metal",) if platform.system() == "Darwin" else ()


def _active(current: Session, host: str | None = None) -> bool:
    """Whether processes of this host, or of the one that this environment is for, get patches."""
    limit, same = boot.limited_to(), canonical
    by_itself = boot.active() or bool(limit and same(limit) == same(host or limit))
    return current.active or (by_itself and not settings.off())


def _unasked(current: Session, patch: Patch, target: Target, active: bool) -> Outcome:
    """The state of a target that this process did not ask for."""
    verdict = judge_file(current, patch, target)
    if not verdict.ok:
        status, reason, by_choice = verdict.status, verdict.reason, False
    elif current.switched_off(patch.id):
        status, reason = Status.DISABLED, f"switched off by {settings.DISABLE}"
        by_choice = True
    elif patch.optional:
        status, reason = Status.DISABLED, f"optional: ask for it by name; {verdict.reason}"
        by_choice = True
    elif active:
        status, by_choice = Status.PENDING, False
        always = patch.id in current.matrix.always
        reason = f"waits for {'its module' if always else 'a model that needs it'}"
        rule = current.matrix.rule(patch.id, target.distribution)
        reason = rule.noted(reason) if rule else reason
    elif settings.off():
        status, by_choice = Status.DISABLED, True
        reason = f"{verdict.reason}; switched off by {boot.SWITCH}"
    else:
        status, by_choice = Status.DISABLED, False
        reason = f"{verdict.reason}; mlx_patches is not active here"
    return Outcome(patch.id, target.distribution, target.path, status, reason, by_choice)


def judge_file(current: Session, patch: Patch, target: Target) -> Verdict:
    """The gate's verdict on a target, from its source file."""
    if current.installed(target.distribution) is None:
        return current.gate.decide(patch, target, None)
    return current.gate.decide(patch, target, in_file(target, _declared(target.module)))


@cache
def _declared(module: str) -> tuple[str, ...]:
    """Every name that a patch declares in a file of this name, for one parse of the file."""
    file = module.rpartition(".")[2]
    names: dict[str, None] = {}
    for patch in session().registry:
        for target in patch.targets:
            if target.module.rpartition(".")[2] == file:
                names.update(dict.fromkeys(target.mentions))
    return tuple(names)


def _model_report(current: Session, model: str) -> ModelReport:
    folder = None
    if Path(model).is_dir() or "/" in model or model.startswith("."):
        if not Path(model).is_dir():
            raise MlxPatchesError(f"{model}: no such folder")
        folder = read_folder(Path(model))
        model = folder.model_type
    found = implementations(model)
    installed = [d for d in MODEL_PACKAGES.values() if current.installed(d)]
    if not found and installed:
        from difflib import get_close_matches

        model = quoted(model)
        close = get_close_matches(model, current.matrix.models, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise MlxPatchesError(f"no model type {model!r} in {' or '.join(installed)}{hint}")
    rows = {
        distribution: current.matrix.patches_for(name, distribution)
        for distribution, name in found.items()
    }
    known = any(name in current.matrix.models for name in found.values())
    return ModelReport(model, folder, rows, known)


def _model_dict(report: ModelReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "model_type": report.model_type,
        "folder": str(report.folder.path) if report.folder else None,
        "eos_token_ids": report.folder.eos if report.folder else {},
        "known": report.known,
        "rows": {name: list(ids) for name, ids in report.rows.items()},
    }
