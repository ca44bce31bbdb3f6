"""Whether a function always returns a value, by its code: then a layer must not return None."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType, FunctionType, MethodType
from typing import Any

from .fingerprint import parse_function

# How many functions deep returned calls are followed.
_DEPTH = 4
_ASYNC = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def gives_a_value(function: Any, args: tuple[Any, ...] = (), depth: int = _DEPTH) -> bool:
    """Whether a function never returns None, as far as its code shows.

    If it returns the result of another call, that function is examined too, provided that its
    dotted name starts with a global or with the first argument. Any other call, and any built-in
    function, may return None.
    """
    if isinstance(function, type):
        return True
    if isinstance(function, MethodType):
        function, args = function.__func__, (function.__self__, *args)
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        function, args = inspect.getattr_static(type(function), "__call__", None), (function, *args)
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    if not _returns_no_constant_none(code):
        return False
    if not _returns_calls(code):
        return True
    paths = _calls_returned(function)
    return (
        depth > 0
        and paths is not None
        and all(gives_a_value(*_resolve(path, function, args), depth - 1) for path in paths)
    )


@functools.cache
def _returns_no_constant_none(code: CodeType) -> bool:
    steps = list(dis.get_instructions(code))
    return bool(code.co_flags & _ASYNC) or not any(
        (step.opname == "RETURN_CONST" and step.argval is None)
        or (
            step.opname == "RETURN_VALUE"
            and before.opname == "LOAD_CONST"
            and before.argval is None
        )
        for before, step in pairwise(steps)
    )


@functools.cache
def _returns_calls(code: CodeType) -> bool:
    steps = list(dis.get_instructions(code))
    return not code.co_flags & _ASYNC and any(
        step.opname == "RETURN_VALUE" and "CALL" in before.opname
        for before, step in pairwise(steps)
    )


def _calls_returned(function: FunctionType) -> list[list[str]] | None:
    """The dotted names of the functions whose results it returns; None if one has no such name."""
    tree = parse_function(function)
    if tree is None:
        return None
    paths = [_path(call.func) for call in _returned(tree)]
    return None if [] in paths else paths


def _returned(scope: ast.AST) -> Iterator[ast.Call]:
    """The calls whose results a function's return statements return."""
    if isinstance(scope, ast.Lambda):
        yield from _calls_of(scope.body)
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from _calls_of(node.value)
        elif not isinstance(node, _Scope):
            yield from _returned(node)


def _calls_of(value: ast.expr) -> Iterator[ast.Call]:
    if isinstance(value, ast.Call):
        yield value
    elif isinstance(value, ast.IfExp):
        yield from (*_calls_of(value.body), *_calls_of(value.orelse))
    elif isinstance(value, ast.BoolOp):
        for one in value.values:
            yield from _calls_of(one)


def _path(node: ast.expr) -> list[str]:
    """The names in ``a.b.c``; empty for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        scope = _path(node.value)
        return [*scope, node.attr] if scope else []
    return []


def _resolve(path: list[str], function: FunctionType, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """The object that a dotted name in a function refers to, and no known arguments."""
    code = function.__code__
    first, *rest = path
    if args and code.co_argcount and code.co_varnames[0] == first:
        found = args[0]
    elif first in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return None, ()
    else:
        found = function.__globals__.get(first)
    try:
        return functools.reduce(getattr, rest, found), ()
    except Exception:  # raised by a property
        return None, ()
