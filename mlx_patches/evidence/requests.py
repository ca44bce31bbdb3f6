"""The server lab's evidence: what a server does wrong with requests in company, by parameter.

One file per release of a host, with a part for each command line that was measured.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .store import reading

_HERE = Path(__file__).parent
# The verdicts of cells, the order of counts, and those that a user must know of.
RIGHT, WRONG, IGNORED, REFUSED, ABSENT = "right", "wrong", "ignored", "refused", "n/a"
VERDICTS = (RIGHT, WRONG, IGNORED, REFUSED, ABSENT)
BAD = (WRONG, IGNORED)
SOLO = "solo"
# The options of a command that only serve the lab.
_OPTION = re.compile(r"--(?:continuous-batching|mllm|draft-model|kv-bits|max-kv-size)\b")


def folder() -> Path:
    """The folder of the evidence: next to the code in a wheel, below ``tools`` in a checkout."""
    inside = _HERE / "requests"
    return inside if inside.exists() else _HERE.parents[1] / "tools" / "evidence" / "requests"


def load(name: str, version: str, place: Path | None = None) -> list[dict[str, Any]]:
    """The parts of a host's release; none if it was not measured."""
    if not re.fullmatch(r"[\w-]+ [\w.+!-]{1,100}", f"{name} {version}"):
        return []
    file = (place or folder()) / f"{name}-{version}.json"
    with reading(file):
        return list(json.loads(file.read_bytes())) if file.exists() else []


def summary(parts: list[dict[str, Any]]) -> Iterator[str]:
    """One sentence for each kind of wrong answers of a host: its parameters, and the repair."""
    for part in parts:
        kinds: dict[tuple[str, str], list[str]] = {}
        patched = part.get("with", {"rows": ()})["rows"]
        states = {
            (row[0], row[1]): "refused with the patches" for row in patched if row[2] == REFUSED
        }
        states |= {(row[0], row[1]): "not repaired" for row in patched if row[2] in BAD}
        for endpoint, parameter, verdict, contexts, _ in part["without"]["rows"]:
            if verdict in BAD:
                company = verdict == WRONG and contexts and SOLO not in contexts
                state = states.get((endpoint, parameter), "repaired")
                state = state if "with" in part else "not measured with the patches"
                key = ("wrong only in company" if company else verdict, state)
                names = kinds.setdefault(key, [])
                if parameter not in names:
                    names.append(parameter)
        options = " ".join(_OPTION.findall(part["command"]))
        where = f"requests{f' ({options})' if options else ''}"
        for (kind, state), names in kinds.items():
            yield f"{where}: {kind}, {state}: {'; '.join(names)}"
