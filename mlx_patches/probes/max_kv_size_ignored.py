"""Makes limited caches for a model that makes its own, and listens for a word about it."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result

SIZE = 4
_TOKENS = 3 * SIZE


def probe(target: Target) -> Result:
    """Red where a cache outgrows the limit and nobody says so."""
    module = importlib.import_module(target.module)
    make = getattr(module, "make_prompt_cache", None)
    if make is None or inspect.unwrap(make).__module__ != target.module:
        raise NotApplicable(f"{target.module} has no make_prompt_cache of its own")
    caches, heard = listened(lambda: make(model_of(module), SIZE))
    held = max(map(tokens_held, caches))
    if held <= SIZE:
        return Result(False, f"{held} of {_TOKENS} tokens are held")
    if any("max_kv_size" in message for message in heard):
        return Result(False, f"{held} tokens are held, and a warning")
    return Result(True, f"{held} tokens are held, not {SIZE}, and no word about it")


def model_of(module: Any) -> Any:
    """A model of a class of its own, with a full layer and one that has a window."""

    class Model:
        layers = (None, None)

        def make_cache(self) -> list[Any]:
            return [module.KVCache(), module.RotatingKVCache(max_size=SIZE)]

    Model.__qualname__ = f"Model{id(Model)}"
    return Model()


def tokens_held(cache: Any) -> int:
    """How many tokens a cache holds of some that it is fed one by one."""
    import mlx.core as mx

    step = mx.zeros((1, 1, 1, 1))
    held: list[int] = [cache.update_and_fetch(step, step)[0].shape[2] for _ in range(_TOKENS)]
    return held[-1]


def listened(act: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What comes of an act, and what our logger was told meanwhile."""
    heard: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mlx_patches")
    logger.addHandler(listener)
    try:
        return act(), heard
    finally:
        logger.removeHandler(listener)
