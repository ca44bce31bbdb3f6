"""Kimi Linear's convolution states are a tuple, which no batch can join, filter or split.

Why
    A linear layer keeps the states of three convolutions as a tuple in one slot of its cache.
    Batch caches take rows of each slot as of an array: a row that joins or leaves a batch raises.
How
    The caches have a slot for each state, and the layer is given a view of them with the two
    slots that it knows.
Upstream
    mlx-lm 0.30.7, in the same way.
Retire when
    No supported release is older.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.parts import Overlay

# The slots of a layer's cache: three convolutions' states, and the recurrence's.
CONVOLUTIONS, SLOTS = 3, 4


def make_slots(make: Callable[[Any], list[Any]], model: Any) -> list[Any]:
    """The model's caches, with a slot for each state."""
    return [
        # Not the same class: ``MambaCache.merge`` makes two slots.
        importlib.import_module(type(layer).__module__).ArraysCache(SLOTS)
        if len(getattr(layer, "cache", ())) == 2
        else layer
        for layer in make(model)
    ]


def with_slots(call: Callable[..., Any]) -> Callable[..., Any]:
    """Factory of a linear layer's call, (rows, length, width)."""
    # A release that keeps the recurrence's state in the last slot names it.
    knows_slots = CONVOLUTIONS in inspect.unwrap(call).__code__.co_consts

    @functools.wraps(call)
    def replacement(layer: Any, x: Any, mask: Any = None, cache: Any = None, **kwargs: Any) -> Any:
        if not knows_slots and has_slots(cache):
            cache = TwoSlots(cache)
        return call(layer, x, mask, cache, **kwargs)

    return replacement


def has_slots(cache: Any) -> bool:
    """Whether a layer's cache has a slot for each state; one from before the patch has not."""
    return len(getattr(cache, "cache", ())) == SLOTS


class TwoSlots(Overlay):
    """A cache as the layer knows it: a tuple of convolution states, and the recurrence's state."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self[0], self[1]))

    def __getitem__(self, index: int) -> Any:
        *convolutions, state = self._whole.cache
        if index:
            return state
        return None if convolutions[0] is None else tuple(convolutions)

    def __setitem__(self, index: int, value: Any) -> None:
        if index:
            self._whole.cache[CONVOLUTIONS] = value
        else:
            self._whole.cache[:CONVOLUTIONS] = value


_MODULE = "mlx_lm.models.kimi_linear"

PATCH = Patch(
    id="kimi-states",
    severity="crash",
    summary="Kimi Linear in mlx-lm crashes when a row joins or leaves a batch",
    targets=(
        Target("mlx-lm", _MODULE, "Model.make_cache", around(make_slots)),
        Target("mlx-lm", _MODULE, "KimiDeltaAttention.__call__", with_slots),
    ),
)
