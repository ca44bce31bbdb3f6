"""Counts what the patches add to a prompt and a decode step; the same on every machine.

    python -m benchmarks.steps [--family llama --family qwen3_vl] [--rows 8]

Feeds the lab's tiny models as the release's engine does, and counts graph nodes, Python calls and
device reads by mlx_patches, without patches and with what `apply()` puts in effect. Prints a
markdown table. Run it from the repository's root, in an environment with mlx-lm or mlx-vlm and
mlx-patches.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engine import FAMILIES, commit, find_family, patches, versions
from mlx_patches.lab import LabModel, NotBuilt
from mlx_patches.lab.build import build
from tests.releases import costs

PROMPT = 64


class Cost(NamedTuple):
    """Graph nodes, Python calls, and device reads by mlx_patches, of one call of a model."""

    nodes: float
    calls: int
    reads: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", action="append", help="may be repeated")
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    print(f"{versions()}, commit {commit()}; counts without patches, and what the patches add.\n")
    heads = ["family", "rows"]
    heads += [f"{part}: {what}" for part in ("prompt", "step") for what in Cost._fields]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in options.family or FAMILIES:
        for family in find_family(name):
            try:
                model = build(family)
            except NotBuilt:
                continue
            for kind, make in batches(model, options.rows).items():
                cells = " | ".join(compare_counts(make))
                print(f"| {family} | {kind} | {cells} |", flush=True)


def batches(model: LabModel, rows: int) -> dict[str, Callable[[], costs.Batch]]:
    """Makers of a single row, and of batches without and with padding."""
    padding = [2 * (row % 2) for row in range(rows)]
    return {
        "1, solo": lambda: costs.Solo(model),
        f"{rows}, equal": lambda: costs.Batch(model, [0] * rows),
        f"{rows}, unequal": lambda: costs.Batch(model, padding),
    }


def compare_counts(make: Callable[[], costs.Batch]) -> list[str]:
    """A cell for each count: without patches, and what the patches add."""
    found = []
    for is_patched in (False, True):
        with patches(is_patched):
            try:
                measure_costs(make)  # the first call may import modules or fill caches
                found.append(measure_costs(make))
            except Exception:
                found.append(None)
    plain, patched = found
    if patched is None:
        return ["raises"] * 2 * len(Cost._fields)
    if plain is None:
        return [f"{round(count, 1):g}" for cost in patched for count in cost]
    return [
        f"{round(a, 1):g}" + (f" {round(b - a, 1):+g}" if round(b - a, 1) else "")
        for one, other in zip(plain, patched, strict=True)
        for a, b in zip(one, other, strict=True)
    ]


def measure_costs(make: Callable[[], costs.Batch]) -> list[Cost]:
    """The cost of a prompt, and of the third decode step after it: counts begin in the second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batch, logits = feed_prompt(make, 0, lambda call: call)
        prompt = costs.nodes([logits, batch.cache], folder).total()
        return [
            Cost(prompt, *count_calls(make, 0)),
            Cost(count_evaluated(make, folder), *count_calls(make, 3)),
        ]


def count_evaluated(make: Callable[[], costs.Batch], folder: Path) -> float:
    """The mean number of nodes of a decode step, if the engine evaluates only the logits."""
    batch = make()
    batch.evaluate(batch.prefill(PROMPT))
    return costs.count_evaluated_nodes(batch, costs.PERIOD, folder) / costs.PERIOD


def count_calls(make: Callable[[], costs.Batch], steps: int) -> list[int]:
    """The calls and the reads of the last of ``steps`` decode steps after a prompt.

    Those of the prompt if ``steps`` is 0.
    """
    found: list[int] = []

    def profile_call(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_counted(*args: Any, **kwargs: Any) -> Any:
            events: list[str] = []
            sys.setprofile(lambda frame, event, callee: events.append(event))
            try:
                return call(*args, **kwargs)
            finally:
                sys.setprofile(None)
                found.append(events.count("call") + events.count("c_call"))

        return call_counted

    def watch_reads(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_recorded(*args: Any, **kwargs: Any) -> Any:
            with costs.reads() as seen:
                out = call(*args, **kwargs)
            found.append(len(seen))
            return out

        return call_recorded

    for counting in (profile_call, watch_reads):
        feed_prompt(make, steps, counting)
    return found


def feed_prompt(
    make: Callable[[], costs.Batch], steps: int, counting: Callable[..., Any]
) -> tuple[costs.Batch, Any]:
    """Feed a prompt and steps, the last call wrapped in ``counting``; returns batch and logits."""
    batch = make()
    model = batch.model
    feeds = [lambda: batch.prefill(PROMPT), *[batch.step] * steps]
    for feed in feeds[:-1]:
        batch.evaluate(feed())
    batch.evaluate()
    batch.model = dataclasses.replace(model, call=counting(model.call))
    return batch, feeds[-1]()


if __name__ == "__main__":
    main()
