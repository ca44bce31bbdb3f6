"""Finds other packages that wrapped or replaced a patched function, or still hold the original."""

import gc
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import FrameType, FunctionType, ModuleType
from typing import Any

from .fingerprint import accessors, functions_of
from .patch import MISSING


def function_of(obj: Any) -> Any:
    """The function behind a property's getter, a class method or a static method."""
    return accessors(obj)[0]


def chain(obj: Any) -> list[Any]:
    """An object and what it wraps, outermost first; wrapt 1.x has no ``wrapper_chain``."""
    links: list[Any] = []
    while len(links) < 64 and not any(link is obj for link in links):
        links.append(obj)
        try:
            obj = obj.__wrapped__
        except (AttributeError, ValueError):  # the end, or a proxy without an object
            break
    return links


def is_proxy(obj: Any) -> bool:
    """Whether an object is a wrapt proxy, of any release of wrapt or of a vendored copy."""
    names = {kind.__name__ for kind in type(obj).__mro__}
    return not names.isdisjoint({"ObjectProxy", "BaseObjectProxy"})


def covers(live: Any, ours: Any) -> bool:
    """Whether ``live`` is a wrapper around our installed object, or its function."""
    return wrapper_above(live, ours) is not None


def relink(live: Any, ours: Any, original: Any) -> bool:
    """Let a wrapt wrapper around our object wrap the original instead; False if there is none."""
    for link, below in pairwise(chain(live)):
        if below is ours and is_proxy(link):
            link.__wrapped__ = original
            return True
    return False


def wrapper_above(live: Any, ours: Any) -> Any:
    """The wrapper directly around our object or its function; None if there is none."""
    for top, bottom in ((live, ours), (function_of(live), function_of(ours))):
        for link, below in pairwise(chain(top)):
            if below is bottom:
                return link
    return None


def find_replacement(original: Any, module: ModuleType) -> str:
    """The name of a function that replaced one of this module from outside; empty if none did.

    A wrapper around the module's own function is not a replacement: our layers go on top of it.
    """
    if original is MISSING:
        return ""
    for function in functions_of(original):
        scope = getattr(function, "__globals__", None)
        if scope is not None and scope is not vars(module):
            return describe(function)
    return ""


def describe(obj: Any) -> str:
    """A short name, ``module:Qualified.name``, for an object of another package.

    The name comes from its code object: functools.wraps and wrapt copy the wrapped function's name.
    """
    function = obj if is_proxy(obj) else function_of(obj) or obj
    if is_proxy(function):
        function = getattr(function, "_self_wrapper", type(function))
    scope = getattr(function, "__globals__", {})
    module = scope.get("__name__") or getattr(function, "__module__", None) or "?"
    name = getattr(function, "__qualname__", type(obj).__name__)
    return f"{module}:{getattr(getattr(function, '__code__', None), 'co_qualname', name)}"


CELL = "a cell"


def other_holders(originals: Mapping[str, Any], ours: Iterable[Any] = ()) -> dict[str, str]:
    """Find other modules, functions, partials and closures that still refer to an original.

    Searches the whole heap, which takes up to a second in a large process: run on request only.
    ``ours`` are our own objects that refer to an original. Returns path to one holder, described.
    """
    known = {id(one) for one in ours}
    held = _find_holders(originals, known)
    if held:  # perhaps only by uncollected garbage
        gc.collect()
        held = _find_holders(originals, known)
    return held


def _find_holders(originals: Mapping[str, Any], known: set[int]) -> dict[str, str]:
    held: dict[str, str] = {}
    for path, original in originals.items():
        for referrer in gc.get_referrers(original):
            if id(referrer) in known or isinstance(referrer, FrameType):
                continue
            if name := _holder(referrer):
                held[path] = name
                if name != CELL:  # the least informative
                    break
    return held


def _holder(referrer: Any) -> str:
    if isinstance(referrer, dict):
        name = referrer.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and vars(module) is referrer:
            return f"the module {name}"
        return ""
    if isinstance(referrer, FunctionType):
        return describe(referrer)
    if isinstance(referrer, tuple):
        for owner in gc.get_referrers(referrer):
            if isinstance(owner, FunctionType):
                return f"a default argument of {describe(owner)}"
        return ""
    return {"partial": "a partial", "cell": CELL}.get(type(referrer).__name__, "")
