"""Functions with the parameters of a released function, compiled at their first call.

The parameters of a patch's named function are the arguments that it reads: those before a ``/`` by
position, the others by the released function's own names. The compiled function has the released
one's signature, so reading an argument needs no look-up per call.
"""

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from .errors import MlxPatchesError
from .record import Record

Function = Callable[..., Any]


_compile = functools.cache(compile)


class Parameters:
    """The parameters of a released function."""

    def __init__(self, function: Function):
        released = inspect.unwrap(function)
        code = getattr(released, "__code__", None)
        if not isinstance(code, CodeType):
            raise MlxPatchesError(f"{released!r} is not a Python function")
        self.name = code.co_name
        count, names = code.co_argcount, code.co_varnames
        self.positional = names[:count]
        self.keyword = names[count : count + code.co_kwonlyargcount]
        rest = names[count + code.co_kwonlyargcount :]
        self.args = rest[0] if code.co_flags & inspect.CO_VARARGS else ""
        self.kwargs = rest[bool(self.args)] if code.co_flags & inspect.CO_VARKEYWORDS else ""
        self._positional_only = code.co_posonlyargcount
        values = released.__defaults__ or ()
        self.defaults = dict(zip(self.positional[count - len(values) :], values, strict=True))
        self.defaults |= released.__kwdefaults__ or {}

    def declare(self) -> str:
        """The source text between the parentheses of the ``def``."""
        parts = [*map(self._declare, self.positional)]
        if self._positional_only:
            parts.insert(self._positional_only, "/")
        parts += [f"*{self.args}"] if self.args or self.keyword else []
        parts += map(self._declare, self.keyword)
        return ", ".join([*parts, *([f"**{self.kwargs}"] if self.kwargs else [])])

    def _declare(self, name: str) -> str:
        return f"{name}=_default_{name}" if name in self.defaults else name

    def forward(self, /, **changed: str) -> str:
        """The source text that passes the arguments on; ``changed`` are expressions by name.

        An argument in the function's ``**kwargs`` changes only in calls that pass it.
        """
        parts = [changed.pop(name, name) for name in self.positional]
        parts += [f"*{self.args}"] if self.args else []
        parts += [f"{name}={changed.pop(name, name)}" for name in self.keyword]
        more = self.kwargs
        for name, value in changed.items():
            more = f"({more} | {{{name!r}: {value}}} if {name!r} in {more} else {more})"
        return ", ".join([*parts, *([f"**{more}"] if more else [])])

    def read(self, function: Function, taken: int = 0) -> str:
        """The source text of the arguments that a patch reads, after ``taken`` others."""
        code = function.__code__
        if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            raise MlxPatchesError(f"{function.__name__} must name each argument that it reads")
        places = code.co_posonlyargcount
        names = code.co_varnames[: code.co_argcount]
        parts = [*self.positional[: max(places - taken, 0)]]
        parts += map(self.find, names[max(places, taken) :])
        return ", ".join(parts)

    def find(self, name: str) -> str:
        """The source text that reads one argument by its name; it must exist."""
        if name in self.positional or name in self.keyword:
            return name
        if self.kwargs:
            return f"{self.kwargs}.get({name!r})"
        raise MlxPatchesError(f"{self.name} has no parameter {name!r}")

    def compile(self, body: str, owner: Function, **names: Any) -> Function:
        """A function with these parameters. It compiles itself when it is first called.

        Args:
            body: its statements, on one line.
            owner: the patch's function; the compiled one counts as code of its module.
            names: further names that the body uses.
        """
        name = self.name if self.name.isidentifier() else "call"
        scope = {f"_default_{key}": value for key, value in self.defaults.items()}
        scope |= {**names, "__name__": owner.__module__}
        source = f"def {name}({self.declare()}): {body}"

        def compile_once() -> Function:
            exec(_compile(source, f"<{__name__}>", "exec"), scope)
            compiled: Any = scope[name]
            made.__defaults__, made.__kwdefaults__ = compiled.__defaults__, compiled.__kwdefaults__
            made.__code__ = compiled.__code__.replace()  # last: another thread may call it
            return made

        scope["_compile_once"] = compile_once
        made = FunctionType(_call_first.__code__.replace(co_name=name), scope, name)
        return made


def _call_first(*args: Any, **kwargs: Any) -> Any:
    """The code of a function that was not called yet, in its own scope."""
    return _compile_once()(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


class ByName(Record):
    """A check of a call that reads arguments by name, as a patch's named function does."""

    check: Function


def compile_check(check: Function | ByName, function: Function) -> Function:
    if not isinstance(check, ByName):
        return check
    known = Parameters(function)
    reads = known.read(check.check)
    return known.compile(f"return _check({reads})", check.check, _check=check.check)
