"""Runs the layers of one function of a site, and goes on where one of them fails.

A layer that raises is skipped for that call. The result of the call then depends on what the
release's own function did in this call, in this thread:

- It was not entered: the other layers and the original run with the same arguments.
- It was entered once, with the arguments of the call, and returned: the call returns its result.
- Otherwise state may have changed: the call fails, since running the original again would feed a
  cache the same tokens twice.

A layer also fails if it returns ``None`` where the original returns a value, or raises SystemExit.
An error that the original raised, or that a layer raised because of one, is the release's own and
reaches the host; so does a ``refusal``. A layer that calls its own site without end fails once, in
the outermost call, where the stack has room to recover. A function that a patch adds has no
original to fall back to. Errors that a generator raises while it is iterated are not caught.

A call costs two frames, the installed function and the recorder of the original's entries, and
one more for each layer. Where every layer has a check (``Target.when``) and all checks say that
nothing is to be done, a call costs one frame and those of the checks. Where every layer of a getter
is made by ``after``, nothing is recorded: a call costs one frame and those of the layers.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from .errors import MlxPatchesError, is_refusal
from .patch import Changed

Function = Callable[..., Any]
# The result in an entry until the original returns.
_PENDING = object()


# Plain classes: a NamedTuple costs start-up 0.1 ms.
class Failure:
    """A layer's failure in one call.

    Args:
        patch: the id of the layer's patch.
        error: the exception; None if the layer returned None.
        touched: state may have changed, so the call failed as well.
        lasting: the layer cannot be made, so it would fail in every call.
    """

    def __init__(
        self, patch: str, error: BaseException | None, touched: bool, lasting: bool = False
    ):
        self.patch = patch
        self.error = error
        self.touched = touched
        self.lasting = lasting


class Policy:
    """What to do with a layer's failure.

    Args:
        report: called with each failure.
        strict: raise each failure to the host, and report none.
        name: the site's path, for messages.
    """

    def __init__(self, report: Callable[[Failure], None], strict: bool = False, name: str = ""):
        self.report = report
        self.strict = strict
        self.name = name


# A layer's function in a chain, after the id of its patch.
Step = tuple[str, Function]


class Composition:
    """The functions that a chain runs.

    Args:
        body: the outermost layer's function; the original if there is no layer, None if there is
            neither.
        steps: the layers' functions, the outermost first.
        without: builds the body without the layers of the given patches.
        answers_none: a layer may return None where the original returns a value.
        checks: the layers' ``Target.when``; empty if a layer has none.
        load: imports the layers' modules and replaces this composition, in the first call; None
            if they are imported.
        changes: a getter's layers, the innermost first; empty if one of them is not made by
            ``after``.
    """

    __slots__ = ("answers_none", "body", "changes", "checks", "load", "steps", "without")

    def __init__(
        self,
        body: Function | None,
        steps: tuple[Step, ...] = (),
        without: Callable[[frozenset[str]], Function | None] = lambda left_out: None,
        answers_none: bool = False,
        checks: tuple[Callable[..., bool], ...] = (),
        load: Callable[[], None] | None = None,
        changes: tuple[Changed, ...] = (),
    ):
        self.load = load
        # Tuples: reading an attribute of a change in each call takes longer.
        self.changes = tuple((change.change, change.only_with) for change in changes)
        self.body = body
        self.steps = steps
        self.without = without
        self.answers_none = answers_none
        self.checks = checks


class _Calls(threading.local):
    """The entries of the original in the innermost call of a chain, in this thread.

    An entry is ``[args, kwargs, result]``; ``entries`` is None outside of a call.
    """

    entries: list[list[Any]] | None = None


class Chain:
    """One function of a site. The host calls ``installed``, which runs ``composition``.

    Args:
        original: the release's own function; None if the release has none.
        like: the function whose name and signature ``installed`` takes over.
        policy: what to do with failures of layers.
        is_getter: it is the getter of a property.
    """

    __slots__ = ("_calls", "composition", "entered", "installed", "original", "policy")

    def __init__(
        self, original: Function | None, like: Function, policy: Policy, is_getter: bool = False
    ):
        self.original = original
        self.policy = policy
        self._calls = _Calls()
        self.entered = _recorder(original, self._calls) if original else None
        # Replaced as a whole: a running call keeps its layers while other threads remove some.
        self.composition = Composition(original)
        self.installed = self._make_getter(like) if is_getter else self._make(like)

    def _make(self, like: Function) -> Function:
        calls = self._calls
        original: Any = self.original

        # ``kwargs`` are passed on only if there are any, which saves 50 ns a call.
        @functools.wraps(like)
        def installed(*args: Any, **kwargs: Any) -> Any:
            composition = self.composition
            body: Any = composition.body
            if composition.checks:
                try:
                    for is_needed in composition.checks:
                        if is_needed(*args, **kwargs) if kwargs else is_needed(*args):
                            break
                    else:
                        body = original
                except Exception:  # the layers run, and are guarded
                    pass
            if original is not None and body is original:
                return original(*args, **kwargs) if kwargs else original(*args)
            if composition.load is not None:
                composition.load()
                return installed(*args, **kwargs)
            outer = calls.entries
            entries: list[list[Any]] = []
            calls.entries = entries
            failure: BaseException | None = None
            try:
                result = body(*args, **kwargs)
            except RecursionError as error:
                if outer is not None and not (outer and outer[-1][2] is _PENDING):
                    # A layer of this chain made this call; the outermost call recovers.
                    outer.extend(entries)
                    raise
                failure = error
            except (Exception, SystemExit) as error:
                failure = error
            finally:
                calls.entries = outer
            if failure is None and (
                result is not None
                or composition.answers_none
                or not self._owes_a_value(entries, args)
            ):
                return result
            try:
                return self._recover(failure, composition, entries, args, kwargs)
            finally:
                failure = None  # its traceback refers to this frame: a cycle

        return installed

    def _make_getter(self, like: Function) -> Function:
        """An installed function of one argument, which takes half the time if it only changes."""
        installed = self._make(like)
        original: Any = self.original

        @functools.wraps(like)
        def getter(instance: Any) -> Any:
            composition = self.composition
            if not composition.changes:
                return installed(instance)
            result = changed = original(instance)
            try:
                for change, attribute in composition.changes:
                    if not attribute or hasattr(instance, attribute):
                        changed = change(changed, instance)
            except (Exception, SystemExit) as error:
                return self._settle(error, composition, instance, result)
            if changed is None and result is not None and not composition.answers_none:
                return self._settle(None, composition, instance, result)
            return changed

        return getter

    def _settle(
        self, error: BaseException | None, composition: Composition, instance: Any, result: Any
    ) -> Any:
        """What a getter returns whose change failed: what the original returned."""
        try:
            if isinstance(error, RecursionError) and self._is_nested():
                raise error  # a layer of this chain made this call; the outermost call recovers
            return self._recover(error, composition, [[(instance,), {}, result]], (instance,), {})
        finally:
            error = None  # its traceback refers to this frame: a cycle

    def _is_nested(self) -> bool:
        """Whether the getter that asks was called by a layer of this chain, in this thread."""
        asking: Any = sys._getframe(2)
        frame = asking.f_back
        while frame is not None:
            if frame.f_code is asking.f_code and frame.f_locals["self"] is self:
                return True
            frame = frame.f_back
        return False

    def _owes_a_value(self, entries: list[list[Any]], args: tuple[Any, ...]) -> bool:
        """Whether the release's own function returns a value, so that a None is a failure."""
        if entries:
            _, _, result = entries[-1]
            return result is not None and result is not _PENDING
        if self.original is None:
            return False
        from .returns import gives_a_value  # not at start-up: it loads dis

        return gives_a_value(self.original, args)

    def _recover(
        self,
        error: BaseException | None,
        composition: Composition,
        entries: list[list[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return a result for a call that failed; raise the error if no layer caused it."""
        site = self.policy.name
        left_out: frozenset[str] = frozenset()
        try:
            while True:
                if error is not None and self._is_the_hosts(error, entries):
                    raise error
                patch = _culprit(error, composition.steps, left_out)
                if self.policy.strict:
                    raise _named(error, patch, site)
                kept = _kept(entries, args, kwargs)
                touched = bool(entries) and not kept
                self.policy.report(Failure(patch, error, touched))
                if kept:
                    return entries[0][2]
                left_out |= {patch}
                body = None if touched else composition.without(left_out)
                if body is None:
                    raise _fit_for_the_host(error, patch, site)
                if body is self.original:  # an error here is the release's own
                    return body(*args, **kwargs)
                entries.clear()
                error, result = self._try(body, entries, args, kwargs)
                if error is None and (result is not None or not self._owes_a_value(entries, args)):
                    return result
        finally:
            error = None  # its traceback refers to this frame: a cycle

    def _try(
        self, body: Function, entries: list[list[Any]], args: tuple[Any, ...], kwargs: Any
    ) -> tuple[BaseException | None, Any]:
        """Run ``body`` again, recording the original's entries in ``entries``."""
        calls = self._calls
        outer, calls.entries = calls.entries, entries
        try:
            return None, body(*args, **kwargs)
        except (Exception, SystemExit) as error:
            return error, None
        finally:
            calls.entries = outer

    def _is_the_hosts(self, error: BaseException, entries: list[list[Any]]) -> bool:
        """Whether an error goes to the host, since no layer caused it or it is a refusal."""
        if isinstance(error, RecursionError) and len(entries) > 1:
            return False  # endless recursion of a layer, wherever it exceeded the limit
        return is_refusal(error) or self._is_of_the_release(error)

    def _is_of_the_release(self, error: BaseException) -> bool:
        """Whether an error, or an error that caused it, came through this chain's original."""
        seen: set[int] = set()
        cause: BaseException | None = error
        while cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            trace = cause.__traceback__
            while trace is not None:
                frame = trace.tb_frame
                if frame.f_code is _ENTERED and frame.f_locals.get("calls") is self._calls:
                    return True
                trace = trace.tb_next
            cause = cause.__cause__ or cause.__context__
        return False


def _culprit(error: BaseException | None, steps: Sequence[Step], left_out: frozenset[str]) -> str:
    """The patch whose layer failed: the innermost one in the traceback.

    The outermost one if no layer is in the traceback, or if the call returned None.
    """
    left = [(patch, function) for patch, function in steps if patch not in left_out]
    found = 0
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        code = trace.tb_frame.f_code
        # Search inwards only: two patches may use the same function.
        inner = (i for i in range(found, len(left)) if _code_of(left[i][1]) is code)
        found = next(inner, found)
        trace = trace.tb_next
    return left[found][0]


def _code_of(function: Any) -> CodeType | None:
    """The code object of a layer's function; for a partial or a change, of what it calls."""
    inner = function.change if isinstance(function, Changed) else function
    inner = inner.func if isinstance(inner, functools.partial) else inner
    code = getattr(inner, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _recorder(original: Function, calls: _Calls) -> Function:
    """Wrap the original so that each entry is recorded in the call that it belongs to."""

    @functools.wraps(original)
    def entered(*args: Any, **kwargs: Any) -> Any:
        entries = calls.entries
        if entries is None:  # a layer kept a reference beyond its call
            return original(*args, **kwargs)
        entry = [args, kwargs, _PENDING]
        entries.append(entry)
        result = entry[2] = original(*args, **kwargs)
        return result

    return entered


def _kept(entries: list[list[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the original was entered once, with the arguments of the call, and has returned."""
    if len(entries) != 1:
        return False
    given, named, result = entries[0]
    return (
        result is not _PENDING
        and len(given) == len(args)
        and all(a is b for a, b in zip(given, args, strict=True))
        and named.keys() == kwargs.keys()
        and all(named[name] is kwargs[name] for name in named)
    )


_ENTERED: CodeType = _recorder(len, _Calls()).__code__


def _named(error: BaseException | None, patch: str, site: str) -> BaseException:
    """The error that strict mode raises: a SystemExit would end the process without a message."""
    if error is None:
        return MlxPatchesError(f"the patch {patch} of mlx_patches returned None in {site}")
    if not isinstance(error, Exception):
        return _fit_for_the_host(error, patch, site)
    error.add_note(f"raised by the patch {patch} of mlx_patches in {site}")
    return error


def _fit_for_the_host(error: BaseException | None, patch: str, site: str) -> BaseException:
    """The error that the host gets if the call cannot return a result: never a SystemExit."""
    if isinstance(error, Exception):
        return error
    what = f"returned None in {site}" if error is None else f"failed in {site}: {error!r}"
    made = MlxPatchesError(f"the patch {patch} of mlx_patches {what}")
    made.__cause__ = error
    return made
