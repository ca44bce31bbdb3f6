"""Makes caches with ``max_kv_size`` for a model that makes its own, and records warnings."""

import itertools
from typing import Any

from ....probes.kit import Result, Target, module_of, mx, record_messages, require_own

SIZE = 4
_TOKENS = 3 * SIZE
_serial = itertools.count()


def probe(target: Target) -> Result:
    """Red if a cache outgrows the limit without a warning."""
    make, module = require_own(target), module_of(target)
    caches, messages = record_messages(lambda: make(make_model(module), SIZE))
    held = max(map(feed_tokens, caches))
    if held <= SIZE:
        return Result(False, f"the caches hold {held} of {_TOKENS} tokens")
    if any("max_kv_size" in message for message in messages):
        return Result(False, f"the caches hold {held} tokens, with a warning")
    return Result(True, f"the caches hold {held} tokens, not {SIZE}, without a warning")


def make_model(module: Any) -> Any:
    """Make a model of a new class, with one full layer and one sliding layer.

    The patch warns once per class name, so each class has its own.
    """

    class Model:
        layers = (None, None)

        def make_cache(self) -> list[Any]:
            return [module.KVCache(), module.RotatingKVCache(max_size=SIZE)]

    Model.__qualname__ = f"Model{next(_serial)}"
    return Model()


def feed_tokens(cache: Any) -> int:
    """Feed ``_TOKENS`` tokens one by one to a cache; returns how many it holds."""
    step = mx.zeros((1, 1, 1, 1))
    held: list[int] = [cache.update_and_fetch(step, step)[0].shape[2] for _ in range(_TOKENS)]
    return held[-1]
