"""Guards a function that a layer hands to the release, by the rules of ``guard``.

The release may call it when the layer's own call has ended: from a generator, or from a loop in
another thread. There the guard of the layer's site catches nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .blame import Function
from .guard import Chain, Composition, Failure, Policy

if TYPE_CHECKING:
    from .manager import Manager

# They count the failures of the patches in effect.
MANAGERS: weakref.WeakSet[Manager] = weakref.WeakSet()


def hand_over(patch: str, wrapper: Callable[..., Any], released: Function) -> Function:
    """A function that calls ``wrapper(released, *args, **kwargs)`` in ``released``'s place.

    Args:
        patch: the id of the patch whose layer hands it to the release.
        wrapper: where it fails, ``released`` answers.
    """

    def report(failure: Failure) -> None:
        for manager in list(MANAGERS):
            manager.failed("what it hands to the release", failure)

    strict = any(manager.strict for manager in list(MANAGERS))
    chain = Chain(released, released, Policy(report, strict=strict, name="its callback"))
    step = functools.partial(wrapper, chain.entered)
    chain.composition = Composition(step, ((patch, step),), lambda patch: Composition(released))
    return chain.installed
