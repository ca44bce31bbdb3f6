"""Output formats of the audit: JSON, Markdown, SARIF, and a bug report."""

import json
import os
import platform
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..activation import settings
from ..activation.session import session
from ..core.distributions import source_file
from ..core.files import quote
from ..evidence.words import CRASH, MEMORY, SECURITY, WRONG_TEXT
from . import screen
from .audit import Audit, find_fixed
from .verdict import patch_severity

# In bytes. GitHub accepts comments of 65 kB; people read less.
MAX_REPORT = 8_000
_ROWS = 40
_VARIABLES = (settings.SWITCH, settings.DISABLE, settings.ENABLE, settings.STRICT)
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {WRONG_TEXT: "error", CRASH: "error", SECURITY: "error", MEMORY: "warning"}


def as_json(reports: Sequence[Audit], codes: Sequence[int], cells: bool) -> str:
    """The JSON form, a list if there are several; docs/audit-json.md describes it."""
    found = [
        {**report.as_dict(cells), "exit_code": code}
        for report, code in zip(reports, codes, strict=True)
    ]
    return json.dumps(found if len(found) > 1 else found[0], indent=2)


def markdown(report: Audit, code: int) -> str:
    """The verdict, further facts and the patches that are not in effect, in Markdown."""
    lines = [f"**{_escape(text)}**  " for text in screen.verdict(report).splitlines()]
    lines += ["", *(f"- {_escape(text.strip())}" for text in screen.facts(report))]
    found = screen.effects(report)
    if found:
        fixed: dict[str, dict[str, None]] = {}
        for one in report.outcomes:
            if releases := find_fixed(one):
                fixed.setdefault(one.patch, {})[f"{one.distribution} {releases}"] = None
        lines += ["", "| patch | severity | fixed in | without it |", "|---|---|---|---|"]
        lines += [
            f"| `{id_}` | {patch_severity(id_)} | {', '.join(fixed.get(id_, ()))} |"
            f" {_escape(effect)} |"
            for id_, effect in found.items()
        ]
    lines += ["", *(f"    {text}" for text in screen.commands(report))]
    installed = ", ".join(map(str, report.distributions)) or "no MLX package"
    places = " ".join(screen.describe_places(report).splitlines())
    lines += ["", f"Installed: {installed}. {places} Exit code {code}."]
    return "\n".join(lines)


def bug_report(report: Audit) -> str:
    """The audit for a bug report, in Markdown of at most 8 kB."""
    rows = [
        f"| {o.patch} | {o.target} | {o.status} | {_escape(o.reason)} |"
        for o in report.outcomes
        if o.finding and o.status != "disabled"
    ]
    open_ = ", ".join(report.open) or "none"
    in_effect = ", ".join(id_ for id_ in report.needed if id_ not in report.open) or "none"
    facts = [*screen.verdict(report).splitlines(), *map(str.strip, screen.facts(report))]
    lines = [
        "### mlx-patches report",
        "",
        *(f"- {_escape(text)}" for text in facts),
        *(f"- {text}" for text in screen.describe_places(report).splitlines()),
        "",
        "| | |",
        "|---|---|",
        f"| mlx-patches | {__version__} |",
        f"| installed | {', '.join(map(str, report.distributions)) or 'no MLX package'} |",
        f"| Python | {platform.python_version()} on {platform.platform()} |",
        f"| environment | {_escape(report.environment)} |",
        f"| active | {report.host or ('yes' if report.active else 'no')} |",
        *(
            f"| {name} | {_escape(quote(os.environ[name]))} |"
            for name in _VARIABLES
            if name in os.environ
        ),
        f"| needed, not in effect | {open_} |",
        f"| in effect | {in_effect} |",
    ]
    if rows:
        lines += ["", "| patch | target | status | reason |", "|---|---|---|---|", *rows[:_ROWS]]
    text = "\n".join(lines)
    if len(text.encode()) <= MAX_REPORT:
        return text
    cut = text.encode()[: MAX_REPORT - 100].decode(errors="ignore").rpartition("\n")[0]
    return f"{cut}\n\n(truncated; run mlx-patches audit --json for the rest)"


def sarif(reports: Sequence[Audit], codes: Sequence[int]) -> str:
    """SARIF 2.1.0 for code scanners: a run per report."""
    runs = list(map(_run, reports, codes))
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": runs}, indent=2)


def _run(report: Audit, code: int) -> dict[str, Any]:
    """A run of SARIF: one result per needed patch that is not in effect."""
    found = screen.effects(report)
    targets: dict[str, list[str]] = {}
    for one in report.outcomes:
        if one.patch in found and one.status not in ("not-affected", "fixed-upstream", "absent"):
            targets.setdefault(one.patch, []).append(one.target)
    driver = {
        "name": "mlx-patches",
        "version": __version__,
        "rules": [
            {
                "id": id_,
                "shortDescription": {"text": effect},
                "help": {"text": session().registry.get(id_).documentation},
                "properties": {"severity": patch_severity(id_)},
            }
            for id_, effect in found.items()
        ],
    }
    results: list[dict[str, Any]] = [
        {
            "ruleId": id_,
            "level": _LEVELS.get(patch_severity(id_), "note"),
            "message": {"text": f"{effect} ({', '.join(targets.get(id_, ()))})"},
            "locations": [_location(target) for target in targets.get(id_, ())],
        }
        for id_, effect in found.items()
    ]
    results += [
        {"ruleId": "environment", "level": "error", "message": {"text": text}}
        for text in (*report.unaudited, *report.problems, *report.unknown)
    ]
    properties = {"verdict": screen.verdict(report), "exitCode": code}
    return {"tool": {"driver": driver}, "results": results, "properties": properties}


def _location(target: str) -> dict[str, Any]:
    module = target.partition(":")[0]
    file = source_file(module)
    uri = file.as_uri() if file else f"{module.replace('.', '/')}.py"
    name = [{"fullyQualifiedName": target}]
    return {"physicalLocation": {"artifactLocation": {"uri": uri}}, "logicalLocations": name}


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
