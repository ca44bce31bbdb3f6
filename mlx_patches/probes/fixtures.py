"""What probes share: a target's cache class, small caches and inputs, other patches beside."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from ..core.patch import Target
from . import NotApplicable


def cache_of(target: Target) -> Any:
    """Return the cache class of a target.

    Raises:
        NotApplicable: the target's module does not define the class.
    """
    name = target.name.partition(".")[0]
    cache_class = getattr(importlib.import_module(target.module), name, None)
    if cache_class is None or cache_class.__module__ != target.module:
        raise NotApplicable(f"{target.module} has no {name} of its own")
    return cache_class


def make(cache_class: Any, left_padding: list[int], window: int = 8) -> Any:
    """Make a batch cache; ``window`` is the size of a rotating one, in tokens."""
    if "Rotating" in cache_class.__name__:
        return cache_class(window, left_padding)
    if "Turbo" in cache_class.__name__:
        return cache_class(left_padding, bits=4)
    return cache_class(left_padding)


def keys_and_values(batch: int, tokens: int, width: int = 64) -> Any:
    """Keys and values (batch, 1, tokens, width); the default width fits a quantization group."""
    import mlx.core as mx

    return mx.ones((batch, 1, tokens, width)), mx.ones((batch, 1, tokens, width))


def require_own(target: Target) -> None:
    """Check that the target's module and class themselves define the target.

    Raises:
        NotApplicable: the module only imports it, or the class only inherits it.
    """
    module = importlib.import_module(target.module)
    owner, _, attribute = target.name.rpartition(".")
    holder = getattr(module, owner, None) if owner else module
    is_own = holder is module or getattr(holder, "__module__", None) == target.module
    if holder is None or not is_own or attribute not in vars(holder):
        raise NotApplicable(f"{target.module} defines no {target.name}")


def require(target: Target) -> None:
    """Check that the release has what a target names, its own or not.

    Raises:
        NotApplicable: it has not.
    """
    scope: Any = importlib.import_module(target.module)
    for part in target.name.split("."):
        scope = getattr(scope, part, None)
    if scope is None:
        raise NotApplicable(f"this release has no {target.name}")


@contextlib.contextmanager
def without_variable(name: str) -> Iterator[None]:
    """Leave an environment variable out inside the block."""
    kept = os.environ.pop(name, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[name] = kept


@contextlib.contextmanager
def with_patches(patches: tuple[str, ...]) -> Iterator[None]:
    """Apply these patches inside the block, so that other defects do not show."""
    from ..core.manager import Manager
    from ..patches import catalogue
    from .child import open_gate

    managers = []
    for patch in map(catalogue.builtin().get, patches):
        managers.append(Manager(open_gate(patch)))
        managers[-1].apply(patch)
    try:
        yield
    finally:
        for manager in reversed(managers):
            manager.restore()
