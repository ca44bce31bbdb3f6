"""What happens where a replacement raises while the host runs.

The release's own code takes over, the patch is taken out, and the log says so once. Told apart
by whether the original was entered in this call:

- It was not: the original runs with the same arguments, as if there were no patch. Where it
  raises too, that is what the host would have had, and no fault of the patch.
- It was, and the error came through it: the error is the release's own and goes to the host.
- It was, and the replacement failed besides: the error goes to the host. The original is not
  run again, since a cache would take the same tokens twice; nor is what it returned used, which
  may be one row's of many. One request fails; the next call finds the release's own code.

The release's own code has its defect, alone as before us: that is what the warning, ``status``
and the audit say from then on. A replacement must leave what it is given usable until it calls
the original. Where the release has nothing of its own there is nothing to fall back to: what a
patch adds may raise. What a generator raises once it runs is not seen here.

The price is two calls through ``*args``, a fraction of a microsecond, where a patch stands in
for a function; attributes that it adds, which are read in every layer, pay nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from .patch import Factory

Function = Callable[..., Any]
_ACCESSORS = ("fget", "fset", "fdel")


class Policy(NamedTuple):
    """What to do with a replacement's own errors.

    Args:
        report: ``report(error, entered)`` is told of an error, and whether the original had
            been entered.
        strict: raise every error, and report none.
        name: of patch and target, for a note on errors that are raised.
    """

    report: Callable[[Exception, bool], None]
    strict: bool = False
    name: str = ""


class Guarded(NamedTuple):
    """A replacement, and what turns it into the original for whoever holds it still."""

    replacement: Any
    switch_off: Callable[[], None]


def build(factory: Factory, original: Any, owner: Any, policy: Policy) -> Guarded:
    """Return what a factory makes of an attribute, guarded.

    Args:
        factory: as in ``Target``; it gets the original's functions with a count in front.
            What is no function, method or property it gets as it is, and unguarded.
        original: the live attribute.
        owner: the class or module that has it.
        policy: for the replacement's own errors.
    """
    kind = _kind(original)
    if kind is None:
        return Guarded(factory(original), lambda: None)
    binds = isinstance(owner, type) and kind is not staticmethod
    originals = [_bindable(f) if binds else f for f in _functions(original)]
    pairs = [_pair(function, policy) if function else None for function in originals]
    made = factory(_like(original, [pair and pair.entered for pair in pairs]))
    if type(made) is not kind:
        return Guarded(made, lambda: None)
    functions = [
        pair.over(function) if pair else function
        for pair, function in zip(pairs, _functions(made), strict=True)
    ]
    if all(map(operator.is_, functions, originals)):
        return Guarded(original, lambda: None)

    def switch_off() -> None:
        for pair in filter(None, pairs):
            pair.switch_off()

    return Guarded(_like(made, functions), switch_off)


class _Pair(NamedTuple):
    """One function: what its factory gets, and what stands in its place and runs another."""

    original: Function
    entered: Function
    guarded: Function
    run: Callable[[Function], None]

    def over(self, made: Function | None) -> Function | None:
        """What a factory made of it, guarded; the original where it made nothing of it."""
        if made is None:
            return None
        if made is self.entered or made is self.original:
            return self.original
        self.run(made)
        return self.guarded

    def switch_off(self) -> None:
        """Have whoever holds the guarded function run the original."""
        self.run(self.original)


def _pair(original: Function, policy: Policy) -> _Pair:
    entries = 0
    body = original

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal entries
        entries += 1  # of all threads: one more than this call's own only loses the fallback
        return original(*args, **kwargs)

    # Factories look at the module of what they get.
    scope = getattr(original, "__globals__", {})
    entered = functools.wraps(original)(
        FunctionType(count.__code__, scope, closure=count.__closure__)
    )

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        before, used = entries, body
        try:
            return used(*args, **kwargs)
        except Exception as error:
            ran = entries != before
            if used is original or (ran and _came_through(error, original)):
                raise
            if policy.strict:
                error.add_note(f"raised by {policy.name}")
                raise
            if ran:
                policy.report(error, True)
                raise
            failure = error
        try:
            result = original(*args, **kwargs)
            policy.report(failure, False)
            return result
        finally:
            del failure  # its traceback holds this frame

    def run(made: Function) -> None:
        nonlocal body
        body = made

    return _Pair(original, entered, guarded, run)


def _came_through(error: Exception, original: Function) -> bool:
    """Whether an error was raised while the original ran."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in _ENTERED and frame.f_locals.get("original") is original:
            return True
        trace = trace.tb_next
    return False


_ENTERED = {_pair(len, Policy(lambda error, entered: None)).entered.__code__}


def _kind(obj: Any) -> type | None:
    """What an attribute is: property, class method, static method, function; else None."""
    if type(obj) in (property, classmethod, staticmethod):
        return type(obj)
    return FunctionType if isinstance(obj, FunctionType) else None


def _functions(obj: Any) -> Sequence[Any]:
    """The functions of an attribute; of a property its getter, setter and deleter."""
    if isinstance(obj, property):
        return [getattr(obj, name) for name in _ACCESSORS]
    return [obj.__func__ if isinstance(obj, (classmethod, staticmethod)) else obj]


def _like(obj: Any, functions: Sequence[Any]) -> Any:
    """An attribute of the same kind, of other functions."""
    if isinstance(obj, property):
        get, put, drop = functions
        return property(get, put, drop, obj.__doc__)
    return type(obj)(*functions) if isinstance(obj, (classmethod, staticmethod)) else functions[0]


def _bindable(function: Any) -> Any:
    """A method that somebody wrapped in an object of their own, as a plain function.

    Such an object learns its instance when it is bound.
    """
    if function is None or type(function) is FunctionType:
        return function

    @functools.wraps(function)
    def bound(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return function.__get__(instance, type(instance))(*args, **kwargs)

    return bound
