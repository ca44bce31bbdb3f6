"""Whose failure an error is: a layer's, or the release's.

The innermost frame between the guard and the ``raise`` of the error's first cause decides. If it is
in a release's code, the error is the release's. If it is in a patch's, its layer failed, or an
object that the layer handed to the release (a view, a callback). Frames of other packages belong to
the code that called them.

A layer is identified by its code object, so no two layers of a composition may share one:
``with_own_code`` makes copies.
"""

import functools
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from .packages import DISTRIBUTIONS

Function = Callable[..., Any]
# A layer's function in a chain, after the id of its patch.
Step = tuple[str, Function]
_PATCHES = "mlx_patches.patches."


def blame(
    error: BaseException | None,
    steps: Sequence[Step],
    original: Function | None,
    guard: CodeType | None,
    recorder: CodeType | None,
) -> tuple[str, bool]:
    """The patch whose layer failed, and whether the error was raised in a patch's code.

    The layer is the innermost one on the path of frames; the outermost one if none is on it, or if
    the call returned None. A failure that another site's guard let through is not this chain's, so
    the frames between that guard and its original do not count.

    Args:
        error: None if the call returned None.
        guard: the code of the functions that run chains.
        recorder: the code of the functions that record the originals' entries.
    """
    functions = [inner_function(step) for _, step in steps]
    layers = {id(code_of(function)): index for index, function in enumerate(functions)}
    ours = {_module_of(function) for function in functions}
    releases = {*DISTRIBUTIONS, _module_of(original).partition(".")[0] if original else ""}
    # Guards leave endless recursion to the outermost one.
    is_judged = not isinstance(error, RecursionError)
    found, is_ours, is_below_guard = 0, True, False
    for frame in _path(error)[1:]:  # the first one is the guard's own
        module = str(frame.f_globals.get("__name__"))
        is_release = frame.f_code is recorder or (
            module not in ours and module.partition(".")[0] in releases
        )
        if is_release:
            is_ours, is_below_guard = False, False
        elif frame.f_code is guard and is_judged:
            is_ours, is_below_guard = False, True
        elif not is_below_guard:
            index = layers.get(id(frame.f_code))
            found = max(found, index or 0)
            is_ours = is_ours or index is not None or module in ours or _is_of_a_patch(module)
    return (steps[found][0] if steps else ""), is_ours


def _path(error: BaseException | None) -> list[FrameType]:
    """The frames from the one that caught an error to the one that raised its first cause.

    A cause's own traceback begins at the frame that caught the cause.
    """
    path: list[FrameType] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # an error may be its own cause
        seen.add(id(error))
        trace = error.__traceback__
        if trace is not None and trace.tb_frame in path:
            del path[path.index(trace.tb_frame) :]
        while trace is not None:
            path.append(trace.tb_frame)
            trace = trace.tb_next
        error = error.__cause__
    return path


def _is_of_a_patch(module: str) -> bool:
    return module.startswith(_PATCHES) and not module.rpartition(".")[2].startswith("probe")


def inner_function(step: Any) -> Any:
    """The function that a layer runs, inside a partial, bound method or callable object."""
    while isinstance(step, functools.partial):
        step = step.func
    if isinstance(step, MethodType):
        return step.__func__
    return step if code_of(step) else getattr(type(step), "__call__", step)  # noqa: B004


def with_own_code(step: Any) -> Any:
    """A copy of a layer that shares no code object with another one."""
    if isinstance(step, functools.partial):
        made: Any = functools.partial(with_own_code(step.func), *step.args, **step.keywords)
    elif type(step) is FunctionType:  # not a proxy of one
        code, scope = step.__code__.replace(), step.__globals__
        made = FunctionType(code, scope, step.__name__, step.__defaults__, step.__closure__)
        made.__kwdefaults__ = step.__kwdefaults__
    elif type(inner := inner_function(step)) is FunctionType:
        instance = step.__self__ if isinstance(step, MethodType) else step
        return functools.partial(with_own_code(inner), instance)
    else:
        return step
    functools.update_wrapper(made, step)
    made.__dict__.pop("__wrapped__", None)
    made.__dict__.update(vars(step))
    return made


def code_of(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


def _module_of(function: Any) -> str:
    """The module that has a function's code; for a wrapper, the wrapper's own module."""
    scope = getattr(function, "__globals__", None) or {}
    return str(scope.get("__name__") or getattr(function, "__module__", ""))
