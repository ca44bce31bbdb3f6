"""What the patches cost a model of real size, and what a correct batch gains.

    python benchmarks/throughput.py [--shape 8b] [--batch 1 --batch 8 --batch 32] [--rounds 7]

Random weights in bf16, in the shape of Llama 3.1 8B (16 GB) or of a model of 10 MB. Each round
times the same prefill and the same decode steps with every patch that the release needs and
without, in alternating order; the medians of the rounds' ratios are printed. Then a patched
batch of 8 against the two ways around the defects: one request at a time, and a host's copy of
each offset (``offset + 0``). Needs an environment with mlx-lm and mlx-patches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as caches
from mlx_lm.models import llama

from mlx_patches.core.manager import Manager
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "small": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2048,
    },
}
PROMPT = 256
GAIN_BATCH = 8

Seconds = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--batch", type=int, action="append", help="rows; may be repeated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=64)
    options = parser.parse_args()
    model = built(SHAPES[options.shape])
    print(f"llama, shape {options.shape}, bf16, prompts of {PROMPT}, {options.steps} steps")
    for batch in options.batch or [1, 8, 32]:
        pairs = rounds(options.rounds, partial(run, model, batch, options.steps), patches, plainly)
        prefill, decode = (statistics.median(b[i] / a[i] for a, b in pairs) for i in range(2))
        speed = statistics.median(batch * options.steps / a[1] for a, _ in pairs)
        print(
            f"batch {batch}: patched / unpatched prefill {prefill:.3f}, decode {decode:.3f}, "
            f"{speed:.0f} tokens/s patched"
        )
    gains(model, options.steps, options.rounds)


def gains(model: Any, steps: int, count: int) -> None:
    """A patched batch against its two workarounds."""

    def alone() -> Seconds:
        runs = [run(model, 1, steps) for _ in range(GAIN_BATCH)]
        return sum(r[0] for r in runs), sum(r[1] for r in runs)

    def together() -> Seconds:
        return run(model, GAIN_BATCH, steps)

    one_by_one = [(together_patched(together), alone()) for _ in range(count)]
    copied = rounds(count, together, patches, copies)
    for name, pairs in (("one request at a time", one_by_one), ("offset + 0", copied)):
        ratio = statistics.median(b[1] / a[1] for a, b in pairs)
        print(f"batch {GAIN_BATCH}: patched / {name}: decode {ratio:.3f}")


def together_patched(measured: Callable[[], Seconds]) -> Seconds:
    """Seconds with the patches."""
    undo = patches()
    try:
        return measured()
    finally:
        undo()


def rounds(
    count: int,
    measured: Callable[[], Seconds],
    first: Callable[[], Callable[[], None]],
    second: Callable[[], Callable[[], None]],
) -> list[tuple[Seconds, Seconds]]:
    """Pairs of times in two states; which comes first alternates. Each state returns its undo."""
    pairs = []
    measured()
    for n in range(count):
        seen = {}
        for state in (first, second) if n % 2 else (second, first):
            undo = state()
            try:
                seen[state] = measured()
            finally:
                undo()
        pairs.append((seen[first], seen[second]))
    return pairs


def patches() -> Callable[[], None]:
    """Every patch that the release needs."""
    manager = Manager(Gate(CompatMatrix.builtin()))
    for patch in catalogue.builtin():
        manager.apply(patch)
    return manager.restore


def plainly() -> Callable[[], None]:
    """The release as it is."""
    return lambda: None


def copies() -> Callable[[], None]:
    """A host's way: whoever reads a batch's offset gets a computed copy."""
    cls = caches.BatchKVCache
    kept: dict[int, Any] = {}

    class Offset:
        def __get__(self, cache: Any, owner: Any = None) -> Any:
            return self if cache is None else cache.__dict__["_copied"] + 0

        def __set__(self, cache: Any, value: Any) -> None:
            cache.__dict__["_copied"] = value

    had = cls.__dict__.get("offset", kept)
    cls.offset = Offset()

    def undo() -> None:
        if had is kept:
            del cls.offset
        else:
            cls.offset = had

    return undo


def run(model: Any, batch: int, steps: int) -> Seconds:
    """Seconds of a prefill and of decode steps, each step waited for; once before, unmeasured."""
    once(model, batch, 2)
    return once(model, batch, steps)


def once(model: Any, batch: int, steps: int) -> Seconds:
    """Seconds of a prefill and of decode steps."""
    layers = [caches.BatchKVCache([0] * batch) for _ in model.layers]
    tokens = mx.random.randint(0, model.args.vocab_size, (batch, PROMPT))
    mx.eval(tokens)
    start = time.perf_counter()
    mx.eval(model(tokens, cache=layers)[:, -1], [layer.keys for layer in layers])
    prefilled = time.perf_counter()
    token = tokens[:, :1]
    for _ in range(steps):
        token = mx.argmax(model(token, cache=layers)[:, -1:], axis=-1)
        mx.eval(token)
    return prefilled - start, time.perf_counter() - prefilled


def built(shape: dict[str, int]) -> Any:
    """A llama of random weights in bf16."""
    args = llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, rope_theta=500000.0, **shape)
    model = llama.Model(args)
    model.update(tree_map(lambda w: w.astype(mx.bfloat16), model.parameters()))
    mx.eval(model.parameters())
    return model


if __name__ == "__main__":
    main()
