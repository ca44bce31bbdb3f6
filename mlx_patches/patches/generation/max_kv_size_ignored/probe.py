"""Makes caches with ``max_kv_size`` for a model that makes its own, and records warnings."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import listened, require_own

SIZE = 4
_TOKENS = 3 * SIZE
_serial = itertools.count()


def probe(target: Target) -> Result:
    """Red where a cache outgrows the limit without a warning."""
    make, module = require_own(target), importlib.import_module(target.module)
    caches, heard = listened(lambda: make(model_of(module), SIZE))
    held = max(map(tokens_held, caches))
    if held <= SIZE:
        return Result(False, f"the caches hold {held} of {_TOKENS} tokens")
    if any("max_kv_size" in message for message in heard):
        return Result(False, f"the caches hold {held} tokens, with a warning")
    return Result(True, f"the caches hold {held} tokens, not {SIZE}, without a warning")


def model_of(module: Any) -> Any:
    """Make a model of a new class, with one full layer and one sliding layer.

    The patch warns once a class name, so each class has its own. ``id`` is no such name: a new
    class can lie where a freed one lay.
    """

    class Model:
        layers = (None, None)

        def make_cache(self) -> list[Any]:
            return [module.KVCache(), module.RotatingKVCache(max_size=SIZE)]

    Model.__qualname__ = f"Model{next(_serial)}"
    return Model()


def tokens_held(cache: Any) -> int:
    """Feed a cache ``_TOKENS`` tokens one by one; returns how many it holds."""
    import mlx.core as mx

    step = mx.zeros((1, 1, 1, 1))
    held: list[int] = [cache.update_and_fetch(step, step)[0].shape[2] for _ in range(_TOKENS)]
    return held[-1]
