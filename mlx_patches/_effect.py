"""Writes, reads and removes replacements on live objects. A ledger entry is never proof."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._fingerprint import functions_of
from ._patch import MISSING

if TYPE_CHECKING:
    from ._manager import Site


def put_in(site: Site) -> None:
    """Write the replacement, and rebind a function wherever it was imported by name."""
    setattr(site.owner, site.attribute, site.replacement)
    if isinstance(site.owner, ModuleType):
        _rebind(site.attribute, site.original, site.replacement, besides=site.owner)


def take_out(site: Site) -> str:
    """Put the original back; returns what stands in the way, empty where nothing does."""
    if isinstance(site.owner, ModuleType):
        _rebind(site.attribute, site.replacement, site.original, besides=site.owner)
    live = vars(site.owner).get(site.attribute, MISSING)
    if live is site.replacement:
        if site.original is MISSING:
            delattr(site.owner, site.attribute)
        else:
            setattr(site.owner, site.attribute, site.original)
        return ""
    if live is site.original or not covers(live, site.replacement):
        return ""  # somebody took it out before us
    import wrapt

    try:
        wrapt.unwrap_object(site.owner, site.attribute, _accessor(site.replacement))
    except wrapt.WrapperNotOutermostError as error:
        return f"cannot be taken out: {error}"
    except wrapt.WrapperNotFoundError:
        return ""
    return ""


def problem(site: Site) -> str:
    """Why the replacement is not in effect; empty where it is."""
    if isinstance(site.owner, type) and _current_owner(site) is not site.owner:
        return f"{site.target.module} was reloaded"
    live = vars(site.owner).get(site.attribute, MISSING)
    if live is site.replacement:
        return ""
    if live is site.original or live is MISSING:
        return f"{site.target.path} is the release's own again"
    if covers(live, site.replacement):
        return ""
    return f"{site.target.path} was replaced by {describe(live)}"


def covers(live: Any, replacement: Any) -> bool:
    """True where ``live`` is a wrapper on top of ``replacement``."""
    import wrapt

    try:
        return bool(wrapt.is_wrapped_by(_accessor(live), _accessor(replacement)))
    except wrapt.WrapperChainTooDeepError:
        return False


def stranger(original: Any, module: ModuleType) -> str:
    """Who replaced a function of this module with one of their own; empty where nobody did.

    A wrapper whose chain ends at the module's own function is no stranger: ours goes on top.
    """
    if original is MISSING:
        return ""
    for function in functions_of(original):
        scope = getattr(function, "__globals__", None)
        if scope is not None and scope is not vars(module):
            return describe(function)
    return ""


def describe(obj: Any) -> str:
    """A short name for an object that is not ours."""
    function = next(iter(functions_of(obj)), obj)
    scope = getattr(function, "__globals__", {})
    module = scope.get("__name__") or getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', type(obj).__name__)}"


def other_holders(sites: Iterable[Site]) -> dict[str, str]:
    """Target path to who still holds the original function outside any module's globals.

    Looks through the whole heap: for ``status()`` and the audit, not for start-up.
    """
    functions = {
        id(site.original): site
        for site in sites
        if isinstance(site.owner, ModuleType) and site.original is not MISSING
    }
    held: dict[str, str] = {}
    for site in functions.values():
        ours = {id(site), id(getattr(site.replacement, "__dict__", None))}
        ours |= {id(cell) for cell in getattr(site.replacement, "__closure__", None) or ()}
        for referrer in gc.get_referrers(site.original):
            if id(referrer) in ours or inspect.isframe(referrer):
                continue
            name = _holder(referrer)
            if name:
                held[site.target.path] = name
                break
    return held


def _holder(referrer: Any) -> str:
    if isinstance(referrer, dict):
        name = referrer.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and vars(module) is referrer:
            return f"the module {name}"
        return ""
    if inspect.isfunction(referrer):
        return describe(referrer)
    if isinstance(referrer, tuple):
        for owner in gc.get_referrers(referrer):
            if inspect.isfunction(owner):
                return f"a default argument of {describe(owner)}"
        return ""
    if type(referrer).__name__ in {"partial", "cell"}:
        return f"a {type(referrer).__name__}"
    return ""


def _rebind(attribute: str, old: Any, new: Any, besides: ModuleType) -> None:
    """Replace ``old`` wherever it was imported by name: under any name in its own package."""
    package = besides.__name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if module is besides or not isinstance(module, ModuleType):
            continue
        names = list(vars(module)) if name.partition(".")[0] == package else [attribute]
        for candidate in names:
            if vars(module).get(candidate) is old:
                setattr(module, candidate, new)


def _current_owner(site: Site) -> Any:
    scope: Any = sys.modules.get(site.target.module)
    for name in site.target.name.split(".")[:-1]:
        scope = vars(scope).get(name, None) if scope is not None else None
    return scope


def _accessor(obj: Any) -> Any:
    """The link of a wrapper chain that stands for the object: a wrapped property's getter."""
    return obj.fget if type(obj) is property else obj
