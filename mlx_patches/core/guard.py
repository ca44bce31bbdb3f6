"""Runs the layers of one function of a site, and decides what a call gets where a layer fails.

A layer fails if it raises, or if it returns None where the original returned a value or was not
entered, unless its annotation or its target says that it may.

- The original was not entered in this call: the call goes on without the layer, as if the patch
  were not there. If that raises as well, its error is the release's own, and nothing failed. The
  same holds if a layer called it with arguments that its parameters do not take.
- The original was entered once, with the call's arguments, and returned: the call gets its result.
- Otherwise state may have changed, and running the original again could feed a cache the same
  tokens twice: the call gets the error.

An error that leaves the original is the release's own, unless the innermost frame of the release
or of a patch is a patch's: then an object that a layer handed to the release failed (a view, a
callback). A ``refusal`` is a patch's answer, not a failure. Where a layer of a security patch
fails, the call is refused.

``Policy`` hears of a failure once the call has its answer, so that what the release rejects as
well counts for nothing; and of the first success after each failure.

A call costs two frames, the installed function and the recorder of the original's entries, and one
more for each layer. Where every layer has a check (``Target.when``) and all checks say that
nothing is to be done, a call costs one frame and those of the checks. What a generator or a
coroutine raises later is not caught.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from .errors import MlxPatchesError, is_refusal, refusal
from .record import Record

Function = Callable[..., Any]
# The result in an entry until the original returns.
_PENDING = object()
_OURS = "mlx_patches.patches."


class Failure(Record):
    """A layer's failure in one call.

    Args:
        error: the exception; None if the layer returned None.
        answer: what the call got, in words.
        reached_host: the call got the error, after the original was entered.
    """

    patch: str
    error: BaseException | None
    answer: str
    reached_host: bool = False


RELEASE_ANSWERED = "the release's own code answered"
RESULT_KEPT = "the call got the release's result"
CALL_FAILED = "the call failed, since its state may have changed"
CALL_REFUSED = "the call was refused"


class Policy(Record):
    """What a site does with its layers' failures.

    Args:
        report: called with each failure.
        succeeded: called with the patches of a call's layers at its first success, and at the
            first one after a failure.
        strict: raise each failure to the host, and report none.
    """

    report: Callable[[Failure], None]
    succeeded: Callable[[Sequence[str]], None] = staticmethod(lambda patches: None)
    strict: bool = False
    name: str = ""


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
        checks: the layers' ``Target.when``, each after its patch's id; empty if a layer has none.
        security: the ids of the security patches among the layers'.
    """

    __slots__ = ("answers_none", "body", "checks", "security", "steps", "watched", "without")

    def __init__(
        self,
        body: Function | None,
        steps: tuple[Step, ...] = (),
        without: Callable[[frozenset[str]], Function | None] = lambda left_out: None,
        answers_none: bool = False,
        checks: tuple[Step, ...] = (),
        security: frozenset[str] = frozenset(),
    ):
        self.body = body
        self.steps = steps
        self.without = without
        self.answers_none = answers_none
        self.checks = checks
        self.security = security
        # Whether the next success is reported.
        self.watched = True


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
    """

    __slots__ = ("_calls", "composition", "entered", "installed", "original", "policy")

    def __init__(self, original: Function | None, like: Function, policy: Policy):
        self.original = original
        self.policy = policy
        self._calls = _Calls()
        self.entered = _recorder(original, self._calls) if original else None
        # Replaced as a whole: a running call keeps its layers while other threads remove some.
        self.composition = Composition(original)
        self.installed = self._make(like)

    def _make(self, like: Function) -> Function:
        calls = self._calls
        original: Any = self.original

        # ``kwargs`` are passed on only if there are any, which saves 50 ns a call.
        @functools.wraps(like)
        def installed(*args: Any, **kwargs: Any) -> Any:
            composition = self.composition
            body: Any = composition.body
            failed_check: Failure | None = None
            if composition.checks:
                try:
                    for checking, is_needed in composition.checks:  # noqa: B007
                        if is_needed(*args, **kwargs) if kwargs else is_needed(*args):
                            break
                    else:
                        body = original
                except (Exception, SystemExit) as error:  # the layers run
                    failed_check = Failure(checking, error, "the patch ran without its check")
            if original is not None and body is original:
                return original(*args, **kwargs) if kwargs else original(*args)
            outer = calls.entries
            entries: list[list[Any]] = []
            calls.entries = entries
            failure: BaseException | None = None
            try:
                result = body(*args, **kwargs)
            except RecursionError as error:
                if outer is not None and not (outer and outer[-1][2] is _PENDING):
                    # A layer of this chain made this call. The outermost call recovers, where the
                    # stack has room.
                    outer.extend(entries)
                    raise
                failure = error
            except (Exception, SystemExit) as error:
                failure = error
            finally:
                calls.entries = outer
            if failure is None and (
                result is not None or composition.answers_none or self._may_be_none(entries)
            ):
                if composition.watched:
                    self._succeeded(composition)
            else:
                try:
                    result = self._recover(failure, composition, entries, args, kwargs)
                finally:
                    failure = None  # its traceback refers to this frame: a cycle
            if failed_check is not None:
                self._report(composition, failed_check)
            return result

        return installed

    def _may_be_none(self, entries: Sequence[Sequence[Any]]) -> bool:
        """Whether a layer's None can be the call's result, by what the original returned."""
        result = entries[-1][2] if entries else self.original
        return result is None or result is _PENDING

    def _succeeded(self, composition: Composition) -> None:
        composition.watched = False
        self.policy.succeeded([patch for patch, _ in composition.steps])

    def _report(self, composition: Composition, failure: Failure) -> None:
        composition.watched = True
        self.policy.report(failure)

    def _recover(
        self,
        error: BaseException | None,
        composition: Composition,
        entries: list[list[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a call in which a layer failed; raises the error if no layer did."""
        site = self.policy.name
        failures: list[Failure] = []
        left_out: frozenset[str] = frozenset()
        try:
            while True:
                steps = [step for step in composition.steps if step[0] not in left_out]
                patch, is_ours = _blame(error, steps, self.original)
                if error is not None and (
                    is_refusal(error)
                    or not steps
                    or (_left_the_original(error, entries) and not is_ours)
                ):
                    failures.clear()
                    raise error
                if self.policy.strict:
                    raise name_patch(error, patch, site)
                if patch in composition.security:
                    failures.append(Failure(patch, error, CALL_REFUSED))
                    raise as_refusal(error, patch)
                if _returned_once(entries, args, kwargs):
                    failures.append(Failure(patch, error, RESULT_KEPT))
                    return entries[0][2]
                left_out |= {patch}
                body = None if entries else composition.without(left_out)
                if body is None:
                    failures.append(Failure(patch, error, CALL_FAILED, reached_host=bool(entries)))
                    raise _as_exception(error, patch, site)
                failures.append(Failure(patch, error, RELEASE_ANSWERED))
                error, result = self._try(body, entries, args, kwargs)
                if body is self.original and error is not None:
                    failures.clear()
                    raise error
                if error is None and (
                    result is not None or body is self.original or self._may_be_none(entries)
                ):
                    return result
        finally:
            error = None  # its traceback refers to this frame: a cycle
            for failure in failures:
                self._report(composition, failure)

    def _try(
        self, body: Function, entries: list[list[Any]], args: tuple[Any, ...], kwargs: Any
    ) -> tuple[BaseException | None, Any]:
        """Run ``body``, recording the original's entries in ``entries``."""
        calls = self._calls
        outer, calls.entries = calls.entries, entries
        try:
            return None, body(*args, **kwargs)
        except (Exception, SystemExit) as error:
            return error, None
        finally:
            calls.entries = outer


def _recorder(original: Function, calls: _Calls) -> Function:
    """Wrap the original so that each entry is recorded in the call that it belongs to."""
    is_python = _code_of(original) is not None

    @functools.wraps(original)
    def entered(*args: Any, **kwargs: Any) -> Any:
        entries = calls.entries
        if entries is None:  # a layer kept a reference beyond its call
            return original(*args, **kwargs)
        entry = [args, kwargs, _PENDING]
        entries.append(entry)
        try:
            result = entry[2] = original(*args, **kwargs)
        except TypeError as error:
            if is_python and error.__traceback__ is not None and not error.__traceback__.tb_next:
                entries.pop()  # its parameters do not take these arguments: none of it ran
            raise
        return result

    return entered


def _returned_once(
    entries: Sequence[Sequence[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
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


def _left_the_original(error: BaseException, entries: Sequence[Sequence[Any]]) -> bool:
    """Whether an error came out of the original, as far as its entries tell."""
    if isinstance(error, RecursionError) and len(entries) > 1:
        return False  # endless recursion of a layer, wherever it exceeded the limit
    return bool(entries) and entries[-1][2] is _PENDING


def _blame(
    error: BaseException | None, steps: Sequence[Step], original: Function | None
) -> tuple[str, bool]:
    """The patch whose layer failed, and whether the error was raised in a patch's own code.

    The layer is the innermost one in the traceback; the outermost one if none is there, or if the
    call returned None. Two patches may use the same function, so the search goes inwards only. The
    code is a patch's or the release's, whichever has the innermost frame: other packages' frames
    are of the one that called them. A layer may put the release's error in other words, with
    ``raise ... from error``.
    """
    error = _first_cause(error)
    functions = [inner_function(step) for _, step in steps]
    ours = {_module_of(function) for function in functions}
    package = _module_of(original).partition(".")[0] if original else ""
    found, is_ours = 0, True
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__"))
        if module in ours or _is_of_a_patch(module):
            is_ours = True
        elif package and module.partition(".")[0] == package:
            is_ours = False
        inner = (i for i in range(found, len(steps)) if _code_of(functions[i]) is frame.f_code)
        found = next(inner, found)
        trace = trace.tb_next
    return (steps[found][0] if steps else ""), is_ours


def _is_of_a_patch(module: str) -> bool:
    """Whether a module is a patch's, and not the probe beside it, which is a caller."""
    return module.startswith(_OURS) and not module.rpartition(".")[2].startswith("probe")


def _first_cause(error: BaseException | None) -> BaseException | None:
    """The error that an error was raised from, and so on; an error may be its own cause."""
    seen = set()
    while error is not None and error.__cause__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__
    return error


def inner_function(step: Any) -> Any:
    """A layer's function; for a partial what it calls."""
    return step.func if isinstance(step, functools.partial) else step


def _code_of(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


def _module_of(function: Any) -> str:
    """The module whose code a function is; that of a wrapper is the wrapper's own."""
    scope = getattr(function, "__globals__", None) or {}
    return str(scope.get("__name__") or getattr(function, "__module__", ""))


def name_patch(error: BaseException | None, patch: str, site: str) -> BaseException:
    """The error that strict mode raises: a SystemExit would end the process without a message."""
    if not isinstance(error, Exception):
        return _as_exception(error, patch, site)
    error.add_note(f"raised by the patch {patch} of mlx_patches in {site}")
    return error


def _as_exception(error: BaseException | None, patch: str, site: str) -> BaseException:
    """The error that the host gets if the call cannot return a result: never a SystemExit."""
    if isinstance(error, Exception):
        return error
    what = f"returned None in {site}" if error is None else f"failed in {site}: {error!r}"
    made = MlxPatchesError(f"the patch {patch} of mlx_patches {what}")
    made.__cause__ = error
    return made


def as_refusal(error: BaseException | None, patch: str) -> Exception:
    """The error of a call that a security patch could not check."""
    made = ValueError(f"refused: the patch {patch} of mlx_patches could not check this call")
    made.__cause__ = error
    return refusal(made)
