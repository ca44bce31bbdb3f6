"""Draws docs/report.svg: the families that are right in each release, from the lab's evidence.

`tools/write_docs.py` writes the file. The counts are those of docs/findings.md and the report page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lab_evidence import results_of

from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import words

WIDTH, HEIGHT = 900, 300
LEFT, TOP, BOTTOM, GAP = 24, 58, 40, 40  # margins, and the gap between the two packages
RELEASED, PATCHED = "#1f6f5c", "#8fd0b9"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


class Bar(NamedTuple):
    """The number of right families of one release, without and with the patches."""

    package: str
    version: str
    released: int
    patched: int


def bars(evidence: Iterable[Mapping[str, Any]]) -> list[Bar]:
    found = []
    for one in evidence:
        results = list(results_of(one).values())
        released = results.count(words.GREEN)
        package, version = one["set"].split()
        found.append(Bar(package, version, released, released + results.count(words.REPAIRED)))
    return found


def svg(evidence: Iterable[Mapping[str, Any]]) -> str:
    """The picture: one group of bars for each package, on one scale."""
    every = bars(evidence)
    groups = [[bar for bar in every if bar.package == name] for name in MODEL_PACKAGES.values()]
    step = (WIDTH - 2 * LEFT - GAP * (len(groups) - 1)) / len(every)
    scale = (HEIGHT - TOP - BOTTOM - 18) / max(bar.patched for bar in every)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>",
        "<title>Model families that are right, by release</title>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' rx='8' fill='#ffffff'/>",
        f"<g {FONT} font-size='12' fill='#24292f'>",
        *_legend(),
    ]
    x = float(LEFT)
    for group in groups:
        lines.append(
            f"<text x='{x:.0f}' y='{HEIGHT - 8}' font-weight='600'>{group[0].package}</text>"
        )
        for bar in group:
            lines += _bar(bar, x, step, scale)
            x += step
        x += GAP
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    yield (
        f"<text x='{LEFT}' y='24' font-size='14' font-weight='600'>"
        "Model families that are right, by release</text>"
    )
    for x, colour, text in ((450, RELEASED, "as released"), (560, PATCHED, "with the patches")):
        yield f"<rect x='{x}' y='13' width='12' height='12' fill='{colour}'/>"
        yield f"<text x='{x + 18}' y='24'>{text}</text>"


def _bar(bar: Bar, x: float, step: float, scale: float) -> Iterator[str]:
    """Two rectangles, one in front of the other, the counts, and the version below."""
    base, width, middle = HEIGHT - BOTTOM, step - 8, x + (step - 8) / 2
    for count, colour in ((bar.patched, PATCHED), (bar.released, RELEASED)):
        tall = count * scale
        yield (
            f"<rect x='{x:.1f}' y='{base - tall:.1f}' width='{width:.1f}' height='{tall:.1f}'"
            f" fill='{colour}'/>"
        )
    top = base - bar.patched * scale - 5
    yield f"<text x='{middle:.1f}' y='{top:.1f}' text-anchor='middle'>{bar.patched}</text>"
    # The 0 of a release without a right family is at the base, since it has no dark bar.
    fill = "#ffffff" if bar.released else "#24292f"
    yield (
        f"<text x='{middle:.1f}' y='{base - 5}' text-anchor='middle' fill='{fill}'>"
        f"{bar.released}</text>"
    )
    yield (
        f"<text x='{middle:.1f}' y='{base + 15}' text-anchor='middle' font-size='11'"
        f" fill='#57606a'>{bar.version}</text>"
    )
