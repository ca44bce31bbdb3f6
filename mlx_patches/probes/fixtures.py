"""What probes share: a target's cache class, small caches and inputs, other patches beside."""

from __future__ import annotations

import contextlib
import importlib
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
    name, _, attribute = target.name.partition(".")
    kind = getattr(importlib.import_module(target.module), name, None)
    if getattr(kind, "__module__", None) != target.module or attribute not in vars(kind):
        raise NotApplicable(f"{target.module} defines no {target.name}")


def require_operation(caches: Any, name: str) -> None:
    """Raise NotApplicable if the module itself does not define the attribute."""
    owner, _, attribute = name.rpartition(".")
    holder = getattr(caches, owner, None) if owner else caches
    found = holder is not None and attribute in vars(holder)
    if not found or (owner and holder.__module__ != caches.__name__):
        raise NotApplicable(f"{caches.__name__} defines no {name}")


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
