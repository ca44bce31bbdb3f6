"""The attacks that reach through real servers, as a table.

tests/hosts/doors.py measures it; tools/write_docs.py writes the table into SECURITY.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import evidence_file

FILE = Path(__file__).parents[1] / "tests" / "hosts" / "doors.toml"
# Outcomes: the attack succeeded, in one of four ways; or the server answered with an error, did not
# start, or ignored the field.
RAN, USED, FETCHED, READ = "code ran", "template used", "fetched", "read"
OPEN = (RAN, USED, FETCHED, READ)
REFUSED, IGNORED = "refused", "ignored"
TEMPLATE_IN_REQUEST = "template in a request"
TEMPLATE_IN_FOLDER = "template in a folder"
MODEL_FILE, DYNAMIC = "model_file", "dynamic modules"
MEDIA, PATHS = "media", "paths"
DOORS = (TEMPLATE_IN_REQUEST, TEMPLATE_IN_FOLDER, MODEL_FILE, DYNAMIC, MEDIA, PATHS)


@dataclass
class Outcome:
    """An attack's outcomes without and with the patches, and the patches that refused it."""

    released: str = ""
    patched: str = ""
    by: list[str] = field(default_factory=list)


# By door, then by attack.
Outcomes = dict[str, dict[str, Outcome]]


def verdict(rows: Mapping[str, Outcome]) -> str:
    """A cell of the table, from the outcomes of a door's attacks."""
    if not rows:
        return "not measured"
    if still := sorted({row.patched for row in rows.values() if row.patched in OPEN}):
        return f"**open** ({', '.join(still)})"
    if any(row.released in OPEN for row in rows.values()):
        by = {name for row in rows.values() if row.released in OPEN for name in row.by}
        return "closed" + (f": {', '.join(f'`{name}`' for name in sorted(by))}" if by else "")
    if any(row.released.startswith(REFUSED) for row in rows.values()):
        return "refused by the server"
    return "not reachable"


def load() -> dict[str, Outcomes]:
    if not FILE.exists():
        return {}
    return {
        server: {
            door: {name: Outcome(**row) for name, row in rows.items()}
            for door, rows in doors.items()
        }
        for server, doors in evidence_file.read(FILE).items()
    }


HEAD = """\
# What each attack of doors.py reached, as released and with the profiles `safe,security`.
# Written by `python -m tests.hosts.doors SET --write`.
"""


def save(records: Mapping[str, Outcomes], servers: Iterable[str]) -> None:
    """Write the outcomes, in the order of ``servers``."""
    lines = [HEAD]
    for server in servers:
        for door, rows in records.get(server, {}).items():
            lines.append(f'["{server}"."{door}"]')
            for name, row in rows.items():
                cells = {"released": row.released, "patched": row.patched, "by": row.by}
                inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in cells.items())
                lines.append(f"{json.dumps(name)} = {{ {inner} }}")
            lines.append("")
    FILE.write_text("\n".join(lines).rstrip() + "\n")


def table(records: Mapping[str, Outcomes]) -> str:
    lines = ["| | " + " | ".join(DOORS) + " |", "|---|" + "---|" * len(DOORS)]
    for server, doors in records.items():
        cells = [verdict(doors.get(door, {})) for door in DOORS]
        lines.append(f"| {server} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
