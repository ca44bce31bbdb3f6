"""Speed of repaired families in one batch of unequal prompts over one request at a time.

    python -m benchmarks.batched [--patch recurrent-padding] [--family mamba2 ...] [--rounds 7]
        [--shape tiny|1b] [--lengths 64 --lengths 8 ...]

Measures the families that need the patch in the installed release, with what `apply()` puts in
effect. Each round times a batch of eight unequal prompts and its first steps, and the same prompts
one request at a time, in alternating order. It prints the medians of the rounds' ratios. A tiny
model shows the cost of calls and kernels, not of large matrices: ``--shape 1b`` has about a billion
parameters if the family accepts the sizes. Needs an environment with mlx-patches and mlx-lm or
mlx-vlm.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

import mlx_patches
from mlx_patches.core.distributions import source_file
from mlx_patches.core.resolve import in_file
from mlx_patches.lab import Family, LabModel, engine
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from .engine import SHAPES, build_model, commit, device, versions

PATCHES = ("recurrent-padding", "row-by-row")
LENGTHS = (64, 57, 49, 40, 33, 24, 17, 9)

Seconds = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patch", choices=PATCHES, default=PATCHES[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--family", action="append", help="may be repeated; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument(
        "--lengths", type=int, action="append", help="tokens of a prompt; may be repeated"
    )
    options = parser.parse_args()
    lengths = options.lengths or LENGTHS
    print(f"{versions()}, {device()}, commit {commit()}, {options.patch}, shape {options.shape}:")
    print(
        f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, {options.steps} steps"
    )
    print("\n| family | prefill | decode | a step of the batch |\n|---|---|---|---|")
    for family in families(options.patch):
        if options.family and family.name not in options.family:
            continue
        try:
            model = build_model(family, SHAPES[options.shape])
            cells = gains(model, lengths, options.steps, options.rounds)
        except Exception as reason:  # one family's failure does not stop the others
            print(f"| {family} | {type(reason).__name__}: {reason} | | |", flush=True)
        else:
            prefill, decode, step = cells
            print(f"| {family} | {prefill:.2f} | {decode:.2f} | {1e3 * step:.1f} ms |", flush=True)


def families(patch_id: str) -> list[Family]:
    """The families that need the patch in the installed releases."""
    gate, patch = Gate(CompatMatrix.builtin()), catalogue.builtin().get(patch_id)
    found = [
        Family(target.distribution, target.module.split(".")[2])
        for target in patch.targets
        if not target.supports
        and source_file(target.module)
        and gate.decide(patch, target, in_file(target, target.mentions)).ok
    ]
    return list(dict.fromkeys(found))


def gains(
    model: LabModel, lengths: Sequence[int], steps: int, rounds: int
) -> tuple[float, float, float]:
    """The speed-up of a batch in prefill and in decode, and the seconds of one batched step."""
    prompts = [[(3 * row + at) % 29 + 2 for at in range(n)] for row, n in enumerate(lengths)]
    together = functools.partial(run_batch, model, prompts, steps)
    apart = functools.partial(run_apart, model, prompts, steps)
    with mlx_patches.patched():
        together(), apart()
        pairs = []
        for count in range(rounds):
            order = (together, apart) if count % 2 else (apart, together)
            seen = {measured: measured() for measured in order}
            pairs.append((seen[together], seen[apart]))
    prefill, decode = (statistics.median(b[i] / a[i] for a, b in pairs) for i in range(2))
    return prefill, decode, statistics.median(a[1] for a, _ in pairs) / steps


def run_batch(model: LabModel, prompts: Sequence[Sequence[int]], steps: int) -> Seconds:
    """Seconds for the prompts in one left-padded batch: prefill and decode."""
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    table = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
    return run(model, table, engine.batch_cache(model, padding), steps)


def run_apart(model: LabModel, prompts: Sequence[Sequence[int]], steps: int) -> Seconds:
    """Seconds for the prompts one request at a time: prefill and decode."""
    runs = [run(model, [prompt], model.make_cache(), steps) for prompt in prompts]
    return sum(one[0] for one in runs), sum(one[1] for one in runs)


def run(model: LabModel, table: Sequence[Sequence[int]], cache: list[Any], steps: int) -> Seconds:
    """Seconds for prompts of one length and for the steps after them; each call is evaluated."""
    engine.forget(model)

    def time_call(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        mx.eval(call())
        return time.perf_counter() - start

    prefill = time_call(lambda: model.call(table, cache))
    return prefill, sum(
        time_call(lambda step=step: model.call([[step % 29 + 2]] * len(table), cache))
        for step in range(steps)
    )


if __name__ == "__main__":
    main()
