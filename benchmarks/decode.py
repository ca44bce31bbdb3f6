"""Patched over unpatched decode speed: the ratio of paired runs.

    python benchmarks/decode.py [--rounds 31] [--batch 8]

Each round times the same steps without and with the patches, in alternating order. It prints the
median of the rounds' ratios. A tiny model is the worst case: almost all of its step is Python.
Run it in an environment with a release and mlx-patches.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from typing import Any

import mlx_patches
from mlx_patches.activation.session import MODEL_PACKAGES
from mlx_patches.patches import catalogue
from mlx_patches.probes.batch_invariance import batch_cache, tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    full = ["full_attention"] * 4
    models = {
        "mlx_lm": ("llama, tiny", lambda: tiny("mlx-lm", "llama", layer_types=full)),
        "mlx_vlm": ("gemma4, tiny", lambda: tiny("mlx-vlm", "gemma4")),
    }
    for package in dict.fromkeys(p.partition(".")[0] for p in MODEL_PACKAGES):
        if importlib.util.find_spec(package):
            name, build = models[package]
            ratios = pair_ratios(build(), options.batch, options.steps, options.rounds)
            print(
                f"{name}, batch {options.batch}: patched / unpatched decode "
                f"{statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
            )


def pair_ratios(model: Any, batch: int, steps: int, rounds: int) -> list[float]:
    """Patched over unpatched steps per second, one ratio for each round."""
    decode(model, batch, steps)
    return [one_round(model, batch, steps, patched_first=n % 2 == 0) for n in range(rounds)]


def one_round(model: Any, batch: int, steps: int, patched_first: bool) -> float:
    """One ratio, with all patches that the release needs, even if the model does not need them."""
    seconds = {}
    for patched in (patched_first, not patched_first):
        if patched:
            mlx_patches.apply(patches=catalogue.builtin().ids())
        seconds[patched] = decode(model, batch, steps)
        mlx_patches.restore()
    return seconds[False] / seconds[True]


def decode(model: Any, batch: int, steps: int) -> float:
    """Seconds for ``steps`` decode steps of a batch."""
    import mlx.core as mx

    cache = batch_cache(model, [0] * batch)
    mx.eval(model.call([[1, 2, 3, 4]] * batch, cache))
    token = [[5]] * batch
    start = time.perf_counter()
    for _ in range(steps):
        mx.eval(model.call(token, cache))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
