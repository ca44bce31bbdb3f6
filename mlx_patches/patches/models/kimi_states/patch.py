"""Kimi Linear in mlx-lm crashes when a row joins or leaves a batch.

Why: A linear layer keeps the states of three convolutions as a tuple in one slot of its cache.
    Batch caches join, filter and split the rows of each slot as an array, which a tuple is not.
How: The caches get one slot per state, and the layer a view of them with its two slots.
Upstream: mlx-lm 0.30.7, in the same way.
Retire when: No supported release is older.
"""

import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from ....core.verbs import Function, Patch, define, result
from ..._shared.parts import Overlay

# The slots of a layer's cache: three convolutions' states, and the recurrence's.
CONVOLUTIONS, SLOTS = 3, 4


def split_slots(caches: list[Any]) -> list[Any]:
    """The model's caches, with one slot per state."""
    return [
        # Not the same class: ``MambaCache.merge`` makes two slots.
        importlib.import_module(type(layer).__module__).ArraysCache(SLOTS)
        if len(getattr(layer, "cache", ())) == 2
        else layer
        for layer in caches
    ]


def show_two_slots(call: Function) -> Function:
    """Factory of a linear layer's call, which gets a view with two slots."""
    # A release that uses four slots names the last one.
    uses_slots = CONVOLUTIONS in inspect.unwrap(call).__code__.co_consts

    @functools.wraps(call)
    def call_layer(layer: Any, x: Any, mask: Any = None, cache: Any = None, **kwargs: Any) -> Any:
        if not uses_slots and has_slots(cache):
            cache = TwoSlots(cache)
        return call(layer, x, mask, cache, **kwargs)

    return call_layer


def has_slots(cache: Any) -> bool:
    """Whether a cache has one slot per state; caches made before the patch do not."""
    return len(getattr(cache, "cache", ())) == SLOTS


class TwoSlots(Overlay):
    """A view of a cache: a tuple of convolution states, and the state of the recurrence."""

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
    targets=(
        *result(f"{_MODULE}:Model.make_cache", split_slots),
        *define(f"{_MODULE}:KimiDeltaAttention.__call__", show_two_slots),
    ),
)
