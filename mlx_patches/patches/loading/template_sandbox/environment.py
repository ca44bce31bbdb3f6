"""jinja2's immutable sandbox with bounds, made from any environment with the same settings."""

import functools
import inspect
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any

from jinja2.compiler import CodeGenerator  # type: ignore[import-not-found]
from jinja2.environment import Environment  # type: ignore[import-not-found]
from jinja2.exceptions import SecurityError  # type: ignore[import-not-found]
from jinja2.runtime import Macro  # type: ignore[import-not-found]
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range  # type: ignore[import-not-found]
from jinja2.utils import Namespace  # type: ignore[import-not-found]

from ....core.errors import is_refusal
from .bounds import (
    EXPANDING,
    Budget,
    Buffer,
    as_refusal,
    check,
    check_expansion,
    check_operation,
    count_items,
    count_step,
    current,
    measure,
)

# Methods that return a part of what they are given.
_READS = frozenset({"get", "items", "keys", "values"})
_STOPS = (SecurityError, OverflowError, RecursionError, MemoryError)


class CountedCode(CodeGenerator):  # type: ignore[misc]
    """Compiles a template so that its steps are counted and its values are measured."""

    def blockvisit(self, nodes: Any, frame: Any) -> None:
        """Each run of a block, as that of a loop, is a step."""
        self.writeline("environment.count_step()")
        super().blockvisit(nodes, frame)

    def buffer(self, frame: Any) -> None:
        """The output of a block is measured while it is written."""
        super().buffer(frame)
        self.writeline(f"{frame.buffer} = environment.new_buffer()")

    def visit_Concat(self, node: Any, frame: Any) -> None:
        """``a ~ b``."""
        self._check(super().visit_Concat, node, frame)

    def visit_List(self, node: Any, frame: Any) -> None:
        """``[a, b]``."""
        self._check(super().visit_List, node, frame)

    def visit_Dict(self, node: Any, frame: Any) -> None:
        """``{a: b}``."""
        self._check(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: Any, frame: Any) -> None:
        """``(a, b)``, as a value and as names to assign to."""
        if node.ctx == "load":
            self._check(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _check(self, visit: Callable[..., None], node: Any, frame: Any) -> None:
        self.write("environment.check(")
        visit(node, frame)
        self.write(")")


class Bounds:
    """The part of an environment that counts and measures."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    count_step = staticmethod(count_step)
    check = staticmethod(check)
    new_buffer = Buffer

    @staticmethod
    def concat(chunks: Any) -> str:
        """Join the output of a block, or of the template, which counts it itself."""
        return "".join(Buffer(chunks) if current.get() else chunks)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        count_step()
        name = getattr(__obj, "__name__", "")
        if isinstance(__obj, type) or (
            isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs)
        ):
            check([args, kwargs])
        elif name in EXPANDING:
            method = getattr(__obj, "__wrapped__", __obj)
            subject = getattr(method, "__self__", "")
            args = _as_lists(name, args)
            check_expansion(name, subject, [*args, *kwargs.values()])
        result = super().call(__context, __obj, *args, **kwargs)  # type: ignore[misc]
        return result if name in _READS else check(result)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        count_step()
        check_operation(operator, left, right)
        return check(super().call_binop(context, operator, left, right))  # type: ignore[misc]


class CountedNamespace(Namespace):  # type: ignore[misc]
    """A namespace may contain others, in a way that only its text shows."""

    def __repr__(self) -> str:
        count_step()
        return str(check(super().__repr__()))


def make_sandbox(environment: Environment) -> Environment:
    """A sandbox with the settings, filters, tests, globals and extensions of an environment."""
    sandbox: Any = object.__new__(_sandbox_class(type(environment)))  # type: ignore[arg-type]
    vars(sandbox).update(vars(environment))
    sandbox.code_generator_class = _code_class(environment.code_generator_class)
    sandbox.filters = {name: _limit(name, f) for name, f in environment.filters.items()}
    own = {"range": (range, safe_range), "namespace": (Namespace, CountedNamespace)}
    names = environment.globals
    sandbox.globals = ChainMap(
        {name: new for name, (old, new) in own.items() if names.get(name) is old}, names
    )
    for table in ("binop_table", "unop_table"):
        if not hasattr(environment, table):
            vars(sandbox)[table] = getattr(sandbox, f"default_{table}").copy()
    return sandbox


def limit_render(template: Any, source: Any) -> Any:
    """Give each render of a template a budget, and its refusals one line."""
    render = template.root_render_func
    own = measure(source) if isinstance(source, str) else 0

    def run_limited(context: Any, *args: Any, **kwargs: Any) -> Iterator[str]:
        given = {name: context.parent[name] for name in context.parent if name not in names}
        budget = Budget(own + measure(given))
        output = render(context, *args, **kwargs)
        total = 0
        while True:
            token = current.set(budget)
            try:
                count_step()
                text = next(output)
                total += len(text)
                if total > budget.text:
                    raise as_refusal("it makes too much text")
            except StopIteration:
                return
            except _STOPS as error:
                raise error if is_refusal(error) else as_refusal(_reason(error)) from None
            finally:
                current.reset(token)
            yield text

    names = frozenset(template.globals)
    if not inspect.isasyncgenfunction(render):
        template.root_render_func = run_limited
    return template


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    return str(error) or type(error).__name__


@functools.cache
def _sandbox_class(kind: type[Environment]) -> type[Environment]:
    immutable = issubclass(kind, ImmutableSandboxedEnvironment)
    bases = (Bounds, kind) if immutable else (Bounds, ImmutableSandboxedEnvironment, kind)
    return type(f"Bounded{kind.__name__}", bases, {})


@functools.cache
def _code_class(kind: type[CodeGenerator]) -> type[CodeGenerator]:
    return type(f"Counted{kind.__name__}", (CountedCode, kind), {})


def _limit(name: str, function: Any) -> Any:
    """A filter whose result is measured, and its size estimated if it may be large."""
    passed = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def run_limited(*args: Any, **kwargs: Any) -> Any:
        count_step()
        if name in EXPANDING:
            args = (*args[:passed], *_as_lists(name, args[passed:]))
            check_expansion(name, args[passed], [*args[passed + 1 :], *kwargs.values()])
        result = function(*args, **kwargs)
        return count_items(result) if inspect.isgenerator(result) else check(result)

    return run_limited


def _as_lists(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that can be measured: ``join`` and ``sum`` read an iterator to its end."""
    if name not in ("join", "sum"):
        return args
    return tuple(list(one) if isinstance(one, (Iterator, range)) else one for one in args)
