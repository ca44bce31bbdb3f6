"""Writes, reads and removes replacements on live objects. A ledger entry is never proof."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from .fingerprint import functions_of
from .patch import MISSING

if TYPE_CHECKING:
    from .manager import Site

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def put_in(site: Site, lost: Site | None = None) -> None:
    """Write the replacement, and rebind a function wherever it was imported by name.

    ``lost`` is the same target's earlier site: names may still stand for its replacement.
    """
    setattr(site.owner, site.attribute, site.replacement)
    if isinstance(site.owner, ModuleType):
        for old in (site.original, lost.replacement) if lost else (site.original,):
            _rebind(site.attribute, old, site.replacement, besides=site.owner)


def take_out(site: Site, patches: Mapping[str, Site] = _NOTHING) -> str:
    """Put the original back; returns what stands in the way, empty where nothing does.

    ``patches`` names sites of ours that may be on top.
    """
    problem = _take_out_live(site, patches)
    if not problem and isinstance(site.owner, ModuleType):
        _rebind(site.attribute, site.replacement, site.original, besides=site.owner)
    return problem


def _take_out_live(site: Site, patches: Mapping[str, Site]) -> str:
    live = vars(site.owner).get(site.attribute, MISSING)
    if live is site.replacement:
        if site.original is MISSING:
            delattr(site.owner, site.attribute)
        else:
            setattr(site.owner, site.attribute, site.original)
        return ""
    if live is site.original or not covers(live, site):
        return ""  # somebody took it out before us
    import wrapt

    for link in wrapt.wrapper_chain(live):
        below = issubclass(type(link), wrapt.BaseObjectProxy) and link.__wrapped__
        if below is site.replacement and site.original is not MISSING:
            link.__wrapped__ = site.original
            return ""
    above = _above(live, site)
    for patch_id, other in patches.items():
        if above is other.replacement or above is _function(other.replacement):
            return f"cannot be taken out: the patch {patch_id} is on top of it"
    return f"cannot be taken out: {describe(above)} is on top of it"


def _above(live: Any, site: Site) -> Any:
    """The wrapper that holds the replacement, or its function."""
    import wrapt

    for top, ours in ((live, site.replacement), (_function(live), _function(site.replacement))):
        for link, below in pairwise(wrapt.wrapper_chain(top)):
            if below is ours:
                return link
    return live


def problem(site: Site) -> str:
    """Why the replacement is not in effect; empty where it is."""
    if site.replacement is site.original:
        return f"the replacement of {site.target.path} is the original"
    if _current_owner(site) is not site.owner:
        return f"{site.target.module} was reloaded"
    live = vars(site.owner).get(site.attribute, MISSING)
    if live is site.replacement:
        return ""
    if live is site.original or live is MISSING:
        return f"{site.target.path} is the release's own again"
    if covers(live, site):
        return ""
    return f"{site.target.path} was replaced by {describe(live)}"


def covers(live: Any, site: Site) -> bool:
    """True where ``live`` is a wrapper on top of the replacement, or of its function."""
    import wrapt

    function = _function(site.replacement)
    try:
        return bool(
            wrapt.is_wrapped_by(live, site.replacement)
            or (
                function is not _function(site.original)
                and wrapt.is_wrapped_by(_function(live), function)
            )
        )
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
    """A short name for an object that is not ours.

    By its own code: functools.wraps and wrapt show the name of what they wrap.
    """
    import wrapt

    proxy = wrapt.BaseObjectProxy
    function = obj if issubclass(type(obj), proxy) else _function(obj) or obj
    if issubclass(type(function), proxy):
        function = getattr(function, "_self_wrapper", type(function))
    scope = getattr(function, "__globals__", {})
    module = scope.get("__name__") or getattr(function, "__module__", None) or "?"
    name = getattr(function, "__qualname__", type(obj).__name__)
    return f"{module}:{getattr(getattr(function, '__code__', None), 'co_qualname', name)}"


def other_holders(sites: Iterable[Site]) -> dict[str, str]:
    """Target path to who still holds the original function outside any module's globals.

    Looks through the whole heap: for ``status()`` and the audit, not for start-up.
    """
    functions = {
        id(site.original): site
        for site in sites
        if isinstance(site.owner, ModuleType) and site.original is not MISSING
    }
    held = _held(functions.values())
    if held:  # by garbage that waits to be collected, perhaps
        gc.collect()
        held = _held(functions.values())
    return held


def _held(sites: Iterable[Site]) -> dict[str, str]:
    held: dict[str, str] = {}
    for site in sites:
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
    inside = f"{package}."
    for name, module in list(sys.modules.items()):
        held = getattr(module, "__dict__", None)
        if module is besides or type(held) is not dict:
            continue
        if name.startswith(inside) or name == package:
            for candidate in [key for key, value in list(held.items()) if value is old]:
                setattr(module, candidate, new)
        elif held.get(attribute) is old:
            setattr(module, attribute, new)


def _current_owner(site: Site) -> Any:
    scope: Any = sys.modules.get(site.target.module)
    for name in site.target.name.split(".")[:-1]:
        scope = getattr(scope, "__dict__", {}).get(name)
    return scope


def _function(obj: Any) -> Any:
    """The function behind a property's getter, a class method or a static method."""
    if isinstance(obj, property):
        return obj.fget
    return obj.__func__ if isinstance(obj, (classmethod, staticmethod)) else obj
