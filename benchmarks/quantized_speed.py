"""Speed of a batch with quantized keys and values over the same batch without, patches applied.

    python -m benchmarks.quantized_speed [--shape tiny|1b] [--family qwen3_vl] [--rows 8]
        [--prompt 512] [--rounds 7] [--steps 32]

Requests go through the ``BatchGenerator`` of mlx-vlm, which quantizes from the first token on. The
rounds alternate between the caches; it prints the interquartile mean of the rounds' ratios with a
95 % bootstrap interval. Weights are random. Needs an environment with mlx-vlm from 0.5.0 on, whose
generator takes ``kv_bits``, and mlx-patches; it uses MLX's default device.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.engine import (
    CLOCKS,
    PARTS,
    SHAPES,
    build_plain,
    commit,
    device,
    find_family,
    format_ratio,
    patches,
    run,
    texts,
    versions,
)

# Arguments of the generator.
TURBO = {"kv_quant_scheme": "turboquant"}
KINDS: dict[str, dict[str, Any]] = {
    "8 bits": {"kv_bits": 8},
    "4 bits": {"kv_bits": 4},
    "TurboQuant, 4 bits": {"kv_bits": 4, **TURBO},
    "TurboQuant, 3.5 bits": {"kv_bits": 3.5, **TURBO},
}
FLOATS = "not quantized"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--family", default="qwen3_vl")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=32)
    options = parser.parse_args()
    there = [one for one in find_family(options.family) if one.distribution == "mlx-vlm"]
    if not there:
        raise SystemExit(
            f"quantized_speed: no mlx-vlm with a family {options.family!r} is installed here;"
            " install mlx-vlm 0.5.0 or later, or name another --family"
        )
    family = there[0]
    model = build_plain(family, SHAPES[options.shape])
    prompts = texts(options.rows, options.prompt, False, model.vocabulary)
    # The heads of a tiny model have 32 numbers, which is the smallest group.
    group = 32 if options.shape == "tiny" else 64
    common = {"quantized_kv_start": 0, "kv_group_size": group}
    arguments = {FLOATS: {}, **{name: kind | common for name, kind in KINDS.items()}}
    found: dict[str, list[Any]] = {name: [] for name in arguments}
    failed: dict[str, str] = {}
    with patches(True):
        for number in range(options.rounds + 1):
            for name in reversed(found) if number % 2 else found:
                if name in failed:
                    continue
                try:
                    timed = run(model, prompts, options.steps, CLOCKS["wall"], **arguments[name])
                except RuntimeError as error:  # MLX has no kernel for it on this device
                    failed[name] = str(error)
                    continue
                if number:  # the first round compiles kernels
                    found[name].append(timed)
    print(
        f"{family}, shape {options.shape}, {versions()}, {device()}, commit {commit()}: "
        f"{options.rows} rows, unequal prompts of up to {options.prompt} tokens, "
        f"{options.steps} steps, interquartile means of {options.rounds} rounds.\n"
    )
    print("| keys and values | prefill | decode | a row that joins | tokens/s |")
    print("|---|---|---|---|---|")
    for name, runs in found.items():
        if name in failed:
            print(f"| {name} | raises: {failed[name]} | | | |")
            continue
        pairs = list(zip(found[FLOATS], runs, strict=True))
        cells = [
            format_ratio([[getattr(a, part) / getattr(b, part) for a, b in pairs]])
            for part in PARTS
        ]
        speed = statistics.median(options.rows * options.steps / one.decode for one in runs)
        print(f"| {name} | {' | '.join(cells)} | {speed:.0f} |")


if __name__ == "__main__":
    main()
