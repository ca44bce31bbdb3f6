"""Guards a function that a layer passes to the release, by the rules of ``guard``.

The release may call it after the layer's own call: from a generator, or from a loop in another
thread. The guard of the layer's site does not catch its errors there.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from .blame import Function
from .guard import Chain, Composition, Failure, Policy

# The managers, which count the failures of the patches in effect.
MANAGERS: weakref.WeakSet[Any] = weakref.WeakSet()


def hand_over(patch: str, wrapper: Callable[..., Any], released: Function) -> Function:
    """A function that calls ``wrapper(released, *args, **kwargs)`` in ``released``'s place.

    Args:
        patch: the id of the patch whose layer passes it to the release.
        wrapper: if it fails, ``released`` is called.
    """

    def report(failure: Failure) -> None:
        for manager in list(MANAGERS):
            manager.note_failure("what it hands to the release", failure)

    strict = any(manager.strict for manager in list(MANAGERS))
    chain = Chain(released, released, Policy(report, strict=strict, name="its callback"))
    step = functools.partial(wrapper, chain.entered)
    chain.composition = Composition(step, ((patch, step),), lambda patch: Composition(released))
    return chain.installed
