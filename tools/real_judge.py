"""Compares a batch's answers to real prompts with solo answers, and counts them for a page.

A solo answer is a list of steps. A step has the likeliest tokens with their logits, the likeliest
first, and the scale of its logits: the largest one's size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

EVIDENCE = Path(__file__).parent / "evidence" / "real"
# In the order of the page: the sets, the kinds of weights, and the scenarios.
SETS = ("mlx-lm 0.31.3", "mlx-lm 0.32.2", "mlx-vlm 0.4.3", "mlx-vlm 0.5.0", "mlx-vlm 0.7.10")
FLOAT32 = "float32"
KINDS = (FLOAT32, "bfloat16", "8 bits", "4 bits")
SCENARIOS = ("alone", "together", "joining", "penalty", "window", "server")
# By kind of weights: the lead over the generated token, relative to the scale, up to which rounding
# may have swapped the two.
LEADS = {FLOAT32: 1e-4, "bfloat16": 2e-2, "8 bits": 1e-4, "4 bits": 1e-4}
# From this difference of the first logits on, a family computes another function.
ANOTHER = 1e-2
SAME, FLIP, WRONG = "same", "flip", "wrong"
Step = Mapping[str, Any]


class Verdict(NamedTuple):
    """An answer is the same, a flip of two near tokens, or wrong; with the lead it lost."""

    word: str
    lead: float = 0.0


def judge(tokens: Sequence[int], solo: Sequence[Step], most: float) -> Verdict:
    """Judge the tokens of a request in a batch; after a flip the rest may differ.

    ``most``: the largest lead of a flip.
    """
    if len(tokens) != len(solo):
        return Verdict(WRONG)
    for token, step in zip(tokens, solo, strict=True):
        if token != step["top"][0][0]:
            lead = lead_over(token, step)
            return Verdict(FLIP if lead <= most else WRONG, lead)
    return Verdict(SAME)


def judge_text(
    text: str, solo: Sequence[Step], most: float, decode: Callable[[Sequence[int]], str], end: int
) -> Verdict:
    """Judge the text of a server's answer, which ends at the token ``end``."""
    tokens = [step["top"][0][0] for step in solo]
    if end in tokens:
        tokens = tokens[: tokens.index(end)]
    if text.strip() == decode(tokens).strip():
        return Verdict(SAME)
    for at, step in enumerate(solo[: len(tokens) + 1]):
        for token, _ in step["top"][1:]:
            start = decode([*tokens[:at], *([] if token == end else [token])]).strip()
            agrees = text.strip() == start if token == end else text.strip().startswith(start)
            if agrees and lead_over(token, step) <= most:
                return Verdict(FLIP, lead_over(token, step))
    return Verdict(WRONG)


def lead_over(token: int, step: Step) -> float:
    """The lead of the likeliest token over another; infinite if that is not among the kept."""
    logits = dict(map(tuple, step["top"]))
    if token not in logits:
        return math.inf
    return float((step["top"][0][1] - logits[token]) / step["scale"])


def count(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """The number of each verdict, and the largest lead that a flip lost."""
    verdicts = list(verdicts)
    counts: dict[str, Any] = {
        word: sum(one.word == word for one in verdicts) for word in (SAME, FLIP, WRONG)
    }
    if counts[FLIP]:
        counts["lead"] = max(one.lead for one in verdicts if one.word == FLIP)
    return counts


def load() -> dict[str, dict[str, Any]]:
    found = (json.loads(path.read_text()) for path in EVIDENCE.glob("*.json"))
    return {one["set"]: one for one in sorted(found, key=lambda one: SETS.index(one["set"]))}


def page(evidence: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The page's lines on real weights: per column how many answers are right."""
    lines = [
        "SmolLM2 135M and Gemma 3 270M in each family that can load them (`make real`): answers",
        "that match the single request, as released→patched/all; `~`: changed by rounding.",
        "",
        f"| release set | {' | '.join(COLUMNS)} |",
        "|---" * (1 + len(COLUMNS)) + "|",
    ]
    for name, one in evidence.items():
        cells = (column(one["rows"], *key) for key in COLUMNS.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


# A column of the page to the kinds of weights, and the scenario; "" stands for all.
COLUMNS = {
    **{name: ((FLOAT32,), name) for name in ("together", "joining", "penalty", "server")},
    "bfloat16": (("bfloat16",), ""),
    "quantized": (("8 bits", "4 bits"), ""),
}


def column(rows: Iterable[Mapping[str, Any]], kinds: Collection[str], scenario: str) -> str:
    """The right answers without and with the patches, of all; and the near ties.

    "-" stands for what was not measured.
    """
    own = [r for r in rows if r["kind"] in kinds and scenario in ("", r["scenario"])]
    pairs = [(r["without"], r["with"]) for r in own if "n/a" not in r["with"]]
    if not pairs:
        return "n/a" if own else "-"
    total = sum(right[word] for _, right in pairs for word in (SAME, FLIP, WRONG))
    before, after = (sum(pair[i].get(SAME, 0) for pair in pairs) for i in (0, 1))
    flips = sum(right[FLIP] for _, right in pairs)
    return f"{before}→{after}/{total}" + (f"~{flips}" if flips else "")
