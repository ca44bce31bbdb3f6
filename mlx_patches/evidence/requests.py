"""The server lab's evidence: what a server does wrong with concurrent requests, by parameter.

One file per release of a host, with a part for each command line that was measured.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import store

# The verdicts of cells, the order of counts, and those that a user must know of.
RIGHT, WRONG, IGNORED, REFUSED, ABSENT = "right", "wrong", "ignored", "refused", "n/a"
VERDICTS = (RIGHT, WRONG, IGNORED, REFUSED, ABSENT)
BAD = (WRONG, IGNORED)
# Contexts by name: single requests, streamed ones, and those beside one that began earlier.
SOLO, JOINS = "solo", "joins another"
STREAMED = {"streamed", "joined by another"}
SAMPLING = {"temperature", "top_p", "top_k", "min_p", "xtc"}
# Kinds of wrong answers, then states of their repair; the worst is first in each.
KINDS = (
    "wrong: {}",
    "wrong if streamed: {}",
    "the whole batch gets the first request's {}",
    "wrong beside other requests: {}",
    "ignored: {}",
)
STATES = OPEN, UNKNOWN, REFUSED_, REPAIRED = (
    "not repaired",
    "not measured with the patches",
    "refused with the patches",
    "repaired",
)
# The options of a command that only serve the lab.
_OPTION = re.compile(r"--(?:continuous-batching|mllm|draft-model|kv-bits|max-kv-size)\b")


def folder() -> Path:
    return store.folder().parent / "requests"


def load(name: str, version: str, place: Path | None = None) -> list[dict[str, Any]]:
    """The parts of a host's release; none if it was not measured."""
    if not re.fullmatch(r"[\w-]+ [\w.+!-]{1,100}", f"{name} {version}"):
        return []
    file = (place or folder()) / f"{name}-{version}.json"
    with store.reading(file):
        return list(json.loads(file.read_bytes())) if file.exists() else []


def summary(parts: list[dict[str, Any]]) -> Iterator[str]:
    """One sentence for each kind of wrong answers of a host: its parameters, and the repair.

    A parameter has the worst kind and the worst state of all endpoints.
    """
    for part in parts:
        # Rows that are right in every context are not kept.
        patched = {tuple(row[:2]): row for row in part["with"]["rows"]} if "with" in part else None
        found: dict[str, tuple[int, int]] = {}
        for endpoint, parameter, verdict, contexts, _ in part["without"]["rows"]:
            if verdict in BAD:
                kind = KINDS.index(find_kind(parameter, verdict, contexts))
                state = UNKNOWN
                if patched is not None:
                    state = find_state(contexts, patched.get((endpoint, parameter)))
                old = found.get(parameter, (len(KINDS), len(STATES)))
                found[parameter] = min(kind, old[0]), min(STATES.index(state), old[1])
        options = " ".join(_OPTION.findall(part["command"]))
        where = f"requests{f' ({options})' if options else ''}"
        for both in sorted({*found.values()}):
            names = "; ".join(name for name, one in found.items() if one == both)
            yield f"{where}: {KINDS[both[0]].format(names)}: {STATES[both[1]]}"


def find_state(contexts: list[str], patched: list[Any] | None) -> str:
    """Whether the patches repair a parameter's wrong answers: one of ``STATES``.

    Args:
        contexts: where the answers are wrong; empty if everywhere.
        patched: the parameter's row with the patches; None if all its answers are right.
    """
    verdict, others = (patched[2], patched[3]) if patched else (RIGHT, [])
    if verdict == ABSENT:  # it did not run, perhaps only in other contexts
        return REPAIRED if others and not set(contexts or [SOLO]) <= {*others} else UNKNOWN
    return OPEN if verdict in BAD else REFUSED_ if verdict == REFUSED else REPAIRED


def find_kind(parameter: str, verdict: str, contexts: list[str]) -> str:
    """How a parameter's answers are wrong; no contexts: in all of them."""
    if verdict == IGNORED:
        return KINDS[4]
    if not contexts or SOLO in contexts:
        return KINDS[0]
    if {*contexts} <= STREAMED:
        return KINDS[1]
    return KINDS[2 if parameter in SAMPLING and JOINS in contexts else 3]
