"""Targets at the caches of both packages, and at both functions of a property."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.patch import Factory, Target, around

# Distribution and module, as a ``Target`` begins.

LM_CACHES = ("mlx-lm", "mlx_lm.models.cache")
VLM_CACHES = ("mlx-vlm", "mlx_vlm.models.cache")
CACHES = (LM_CACHES, VLM_CACHES)


def on_caches(
    factories: Mapping[str, Factory],
    places: Sequence[tuple[str, str]] = CACHES,
    **options: Any,
) -> tuple[Target, ...]:
    """A target at each of these names in the packages' caches, with these options."""
    return tuple(
        Target(*place, name, factory, **options)
        for place in places
        for name, factory in factories.items()
    )


def around_setter(
    put: Callable[..., None], get: Callable[..., Any] | None = None
) -> Callable[[Any], property]:
    """A factory like ``around`` that wraps a property's setter, and its getter if ``get`` is given.

    They are called as ``put(setter, instance, value)`` and ``get(getter, instance)``.
    """

    def factory(original: Any) -> property:
        getter = around(get)(original.fget) if get else original.fget
        return property(getter, around(put)(original.fset), original.fdel, original.__doc__)

    return factory
