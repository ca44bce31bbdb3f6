"""Memory of a quantized batch cache against the batch cache of the same type in floats.

    python benchmarks/quantized_memory.py [--rows 4] [--heads 32] [--tokens 512] [--width 128]

Counts the arrays that the caches hold after one prompt, room that is not used yet included.
Run it in an environment with mlx-vlm from 0.5.0 on: mlx-lm has no quantized batch cache.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

TYPES = ("float32", "float16")
BITS = (8, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    shape = (options.rows, options.heads, options.tokens, options.width)
    try:
        caches = importlib.import_module("mlx_vlm.models.cache")
        quantized = caches.BatchQuantizedKVCache
    except (ImportError, AttributeError):
        raise SystemExit("no mlx-vlm with a quantized batch cache is installed") from None
    print("rows, heads, tokens, width:", *shape)
    for name in TYPES:
        plain = held(caches.BatchKVCache([0] * shape[0]), shape, name)
        print(f"{name}: {plain / 1e6:.1f} MB in floats")
        for bits in BITS:
            packed = held(quantized([0] * shape[0], group_size=64, bits=bits), shape, name)
            print(f"{name}: {packed / 1e6:.1f} MB in {bits} bits, {plain / packed:.2f}x less")


def held(cache: Any, shape: tuple[int, ...], name: str) -> int:
    """Bytes that a cache holds after a prompt of keys and values of this shape and type."""
    cache.update_and_fetch(*[mx.ones(shape, getattr(mx, name))] * 2)
    mx.eval(cache.keys, cache.values)
    return sum(part.nbytes for _, part in tree_flatten((cache.keys, cache.values)))


if __name__ == "__main__":
    main()
