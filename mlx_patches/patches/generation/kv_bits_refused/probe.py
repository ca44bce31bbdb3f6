"""Generates with ``kv_bits``, by models that support quantized caches and models that do not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ....core.patch import Target
from ....probes import Result

_PROMPT = [5, 9, 2, 7]
_TOKENS = 6
_BITS = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 2}
_READS, _REFUSES = "qwen3", ("gemma2", "phi")


def probe(target: Target) -> Result:
    """Red where a model raises, or one that supports quantized caches gets none."""
    from ....lab import Family
    from ....lab.build import build

    step = getattr(importlib.import_module(target.module), target.name)
    models = 2 if target.name.startswith("speculative") else 1
    for name in _REFUSES:
        model = build(Family("mlx-lm", name)).module
        try:
            said = answer(step, [model] * models)
        except Exception as error:
            return Result(True, f"{name}: {type(error).__name__}: {error}".splitlines()[0])
        if len(said) != _TOKENS:
            return Result(True, f"{name}: {len(said)} tokens, not {_TOKENS}")
    with counted() as quantized:
        answer(step, [build(Family("mlx-lm", _READS)).module] * models)
    if not any(length > 1 for length in quantized):  # length 1: the patch's own trial
        return Result(True, f"the cache of {_READS} is not quantized")
    return Result(False, f"{', '.join(_REFUSES)} keep float caches, {_READS} quantizes its own")


def answer(step: Any, models: Sequence[Any]) -> list[int]:
    """Generate tokens; in speculative decoding the model is also its own draft model."""
    import mlx.core as mx

    steps = step(mx.array(_PROMPT), *models, max_tokens=_TOKENS, **_BITS)
    return [int(one[0]) for one in steps]


@contextmanager
def counted() -> Iterator[list[int]]:
    """Record the length of each quantized cache at each of its updates."""
    kind = importlib.import_module("mlx_lm.models.cache").QuantizedKVCache
    update, given = kind.update_and_fetch, []

    def noted(cache: Any, keys: Any, values: Any) -> Any:
        given.append(int(cache.offset))
        return update(cache, keys, values)

    kind.update_and_fetch = noted
    try:
        yield given
    finally:
        kind.update_and_fetch = update
