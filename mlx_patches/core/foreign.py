"""Telling our own objects from those of others: who wrapped, replaced or still holds a function."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import FrameType, FunctionType, ModuleType
from typing import Any

from .fingerprint import functions_of
from .patch import MISSING


def function_of(obj: Any) -> Any:
    """The function behind a property's getter, a class method or a static method."""
    if isinstance(obj, property):
        return obj.fget
    return obj.__func__ if isinstance(obj, (classmethod, staticmethod)) else obj


def covers(live: Any, ours: Any) -> bool:
    """True where ``live`` is a wrapper on top of what we installed, or of its function."""
    import wrapt

    try:
        return bool(
            wrapt.is_wrapped_by(live, ours)
            or wrapt.is_wrapped_by(function_of(live), function_of(ours))
        )
    except wrapt.WrapperChainTooDeepError:
        return False


def relink(live: Any, ours: Any, original: Any) -> bool:
    """Have a wrapt wrapper on top of what we installed wrap the original; False where none does."""
    import wrapt

    for link in wrapt.wrapper_chain(live):
        if issubclass(type(link), wrapt.BaseObjectProxy) and link.__wrapped__ is ours:
            link.__wrapped__ = original
            return True
    return False


def wrapper_above(live: Any, ours: Any) -> Any:
    """The wrapper that holds what we installed, or its function."""
    import wrapt

    for top, bottom in ((live, ours), (function_of(live), function_of(ours))):
        for link, below in pairwise(wrapt.wrapper_chain(top)):
            if below is bottom:
                return link
    return live


def replaced_by(original: Any, module: ModuleType) -> str:
    """Who replaced a function of this module with one of their own; empty where nobody did.

    A wrapper whose chain ends at the module's own function is no replacement: ours goes on top.
    """
    if original is MISSING:
        return ""
    for function in functions_of(original):
        scope = getattr(function, "__globals__", None)
        if scope is not None and scope is not vars(module):
            return describe(function)
    return ""


def describe(obj: Any) -> str:
    """A short name, ``module:Qualified.name``, for an object that is not ours.

    By its own code: functools.wraps and wrapt show the name of what they wrap.
    """
    import wrapt

    proxy = wrapt.BaseObjectProxy
    function = obj if issubclass(type(obj), proxy) else function_of(obj) or obj
    if issubclass(type(function), proxy):
        function = getattr(function, "_self_wrapper", type(function))
    scope = getattr(function, "__globals__", {})
    module = scope.get("__name__") or getattr(function, "__module__", None) or "?"
    name = getattr(function, "__qualname__", type(obj).__name__)
    return f"{module}:{getattr(getattr(function, '__code__', None), 'co_qualname', name)}"


def other_holders(originals: Mapping[str, Any], ours: Iterable[Any] = ()) -> dict[str, str]:
    """Path to who still holds a module's original function outside of any attribute.

    Looks through the whole heap, a second in a large process: for the audit, on request.

    Args:
        originals: path to the original function.
        ours: objects that hold it for us.
    """
    held = _held(originals, ours)
    if held:  # by garbage that waits to be collected, perhaps
        gc.collect()
        held = _held(originals, ours)
    return held


def _held(originals: Mapping[str, Any], ours: Iterable[Any]) -> dict[str, str]:
    known = {id(one) for one in ours}
    held: dict[str, str] = {}
    for path, original in originals.items():
        for referrer in gc.get_referrers(original):
            if id(referrer) in known or isinstance(referrer, FrameType):
                continue
            name = _holder(referrer)
            if name:
                held[path] = name
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
    if type(referrer).__name__ in {"partial", "cell"}:
        return f"a {type(referrer).__name__}"
    return ""
