"""Memory of a batch's quantized keys and values against the same in floats, patches applied.

    python -m benchmarks.quantized_memory [--rows 8] [--heads 8] [--tokens 512] [--width 128]

Counts the bytes of all arrays in a layer's cache after one prompt of rows of unequal length,
preallocated space included, and prints a markdown table. Needs an environment with mlx-vlm from
0.5.0 on: mlx-lm has no quantized batch cache.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from .engine import commit, patches, versions

TYPES = ("bfloat16", "float32")
GROUP = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8, help="heads of keys and values")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    shape = (options.rows, options.heads, options.tokens, options.width)
    with patches(True):
        kinds = find_caches()
        print(f"{versions()}, commit {commit()}: {shape[0]} rows, {shape[1]} heads of ", end="")
        print(f"{shape[3]}, {shape[2]} tokens, one layer.\n")
        print(f"| keys and values | {' | '.join(TYPES)} | less |\n|---|---|---|---|")
        plain = importlib.import_module("mlx_vlm.models.cache").BatchKVCache
        floats = [measure_bytes(plain, shape, name) for name in TYPES]
        print(f"| in floats | {' | '.join(map(megabytes, floats))} | |")
        for name, make in kinds.items():
            packed = [measure_bytes(make, shape, dtype) for dtype in TYPES]
            less = ", ".join(f"{a / b:.2f}x" for a, b in zip(floats, packed, strict=True))
            print(f"| {name} | {' | '.join(map(megabytes, packed))} | {less} |")


def find_caches() -> dict[str, Callable[[list[int]], Any]]:
    """Makers of the release's quantized batch caches by name; they take the rows' left padding."""
    try:
        caches = importlib.import_module("mlx_vlm.models.cache")
        affine = caches.BatchQuantizedKVCache
        turbo = importlib.import_module("mlx_vlm.turboquant").BatchTurboQuantKVCache
    except (ImportError, AttributeError):
        raise SystemExit(
            "quantized_memory: install mlx-vlm 0.5.0 or later, which has quantized batch caches"
        ) from None
    return {
        "8 bits": lambda padding: affine(padding, group_size=GROUP, bits=8),
        "4 bits": lambda padding: affine(padding, group_size=GROUP, bits=4),
        "TurboQuant, 4 bits": lambda padding: turbo(padding, bits=4.0),
        "TurboQuant, 3.5 bits": lambda padding: turbo(padding, bits=3.5),
    }


def measure_bytes(make: Callable[[list[int]], Any], shape: tuple[int, ...], name: str) -> int:
    """Bytes of a cache after a prompt of keys and values with this shape and dtype."""
    cache = make([row % 4 for row in range(shape[0])])
    fed = mx.random.normal(shape, key=mx.random.key(0)).astype(getattr(mx, name))
    cache.update_and_fetch(fed, fed)
    parts = list(arrays((cache.keys, cache.values)))
    mx.eval(parts)
    return sum(part.nbytes for part in parts)


def arrays(value: Any) -> Any:
    """Yield the arrays in a nested value."""
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from arrays(part)
    elif value is not None and hasattr(value, "__dict__"):
        yield from arrays(list(vars(value).values()))


def megabytes(count: int) -> str:
    """Format a number of bytes as megabytes."""
    return f"{count / 1e6:.2f} MB"


if __name__ == "__main__":
    main()
