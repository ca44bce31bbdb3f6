"""Runs the layers of one function of a site, and decides the result of a call if a layer fails.

A layer fails if it raises, or if it returns None although the original returned a value or was not
entered, unless its annotation or its target allows None.

- If the original was not entered in this call, the call goes on without the layer, as if the patch
  were not there. If that raises as well, the error is the release's, and nothing failed. The same
  holds if the layer called the original with arguments that its parameters do not take.
- If the original was entered once, with the call's arguments, and returned, the call gets its
  result.
- In any other case state may have changed, and running the original again could feed a cache the
  same tokens twice: the call gets the error.

An error of the release (see ``blame``) is not a failure, unless the original answers the call. Nor
is a ``refusal``, which is a patch's answer. If a layer of a security patch fails, the call is
refused.

A failure is reported once the call has its result, so that a call which the release rejects as well
does not count; so is the first success after each failure.

A call costs two frames, the installed function and the recorder of the original's entries, and one
per layer. If every layer has a check (``Target.when``) and no check requires its layer, a call
costs one frame and those of the checks.

A generator or coroutine function keeps its kind, and its layers run when its body would: when it is
first resumed. What it raises after that is not caught.
"""

import functools
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from typing import Any

from .blame import Function, Step, blame, code_of, inner_function
from .errors import MlxPatchesError, is_refusal, refusal
from .record import Record

# The result in an entry until the original returns.
_PENDING = object()


class Failure(Record):
    """A layer's failure in one call.

    Args:
        error: the exception; None if the layer returned None.
        answer: the outcome of the call, in words.
        reached_host: the call raised the error, after the original was entered.
    """

    patch: str
    error: BaseException | None
    answer: str
    reached_host: bool = False


CALL_FAILED = "the call failed, since its state may have changed"
CALL_REFUSED = "the call was refused"


class Policy(Record):
    """How a site handles failing layers.

    Args:
        report: called with each failure.
        succeeded: called with the patches of a call's layers at its first success, and at the
            first one after a failure.
        strict: raise each failure to the host instead of reporting it.
    """

    report: Callable[[Failure], None]
    succeeded: Callable[[Sequence[str]], None] = staticmethod(lambda patches: None)
    strict: bool = False
    name: str = ""


class Composition(Record):
    """The functions that a chain runs.

    Args:
        body: the outermost layer's function; the original if there is no layer, None if there is
            neither.
        steps: the layers' functions, the outermost first.
        without: composes again without a patch's layer; returns None if nothing is left to run.
        answers_none: a layer may return None although the original returns a value.
        checks: the layers' ``Target.when``, each after its patch's id; empty if a layer has none.
        security: the ids of the security patches among the layers'.
        watched: the next success is reported.
    """

    body: Function | None
    steps: tuple[Step, ...] = ()
    without: "Callable[[str], Composition | None]" = staticmethod(lambda patch: None)
    answers_none: bool = False
    checks: tuple[Step, ...] = ()
    security: frozenset[str] = frozenset()
    watched: bool = True


class _Calls(threading.local):
    """This thread's entries of the original in the innermost call of a chain.

    An entry is ``[args, kwargs, result]``; ``entries`` is None outside of a call.
    """

    entries: list[list[Any]] | None = None


class Chain:
    """One function of a site. The host calls ``installed``, which runs ``composition``.

    Args:
        original: the release's own function; None if the release has none.
        like: the function whose name and signature ``installed`` copies.
    """

    __slots__ = ("_calls", "_run", "composition", "entered", "installed", "original", "policy")

    def __init__(self, original: Function | None, like: Function, policy: Policy):
        self.original = original
        self.policy = policy
        self._calls = _Calls()
        self.entered = _recorder(original, self._calls) if original else None
        # Replaced as a whole: a running call keeps its layers while other threads remove some.
        self.composition = Composition(original)
        self._run = self._guard()
        self.installed = copy_metadata(_match_kind(self._run, like), like)

    def cells(self) -> Iterator[Any]:
        """The closure cells of its functions, which refer to the original."""
        for function in (self.installed, self._run, self.entered):
            yield from getattr(function, "__closure__", None) or ()

    def _guard(self) -> Function:
        calls = self._calls
        original: Any = self.original

        # ``kwargs`` are passed on only if there are any, which saves 50 ns per call.
        def run(*args: Any, **kwargs: Any) -> Any:
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
                    composition.watched = False
                    self.policy.succeeded([patch for patch, _ in composition.steps])
            else:
                try:
                    result = self._recover(failure, composition, entries, args, kwargs)
                finally:
                    failure = None  # its traceback refers to this frame: a cycle
            if failed_check is not None:
                self._report(composition, failed_check)
            return result

        return run

    def _may_be_none(self, entries: Sequence[Sequence[Any]]) -> bool:
        """Whether a layer's None can be the call's result, given the original's results."""
        result = entries[-1][2] if entries else self.original
        return result is None or result is _PENDING

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
        """The result of a call in which a layer failed; raises the error if none did."""
        site, strict = self.policy.name, self.policy.strict
        codes = code_of(self._run), code_of(self.entered)
        failures: list[Failure] = []
        current = composition
        try:
            while True:
                patch, is_ours = blame(error, current.steps, self.original, *codes)
                if error is None and failures and failures[-1].error is None:
                    failures.pop()  # without that layer the result is None as well
                is_security = patch in current.security
                is_kept = not is_security and _has_returned_once(entries, args, kwargs)
                rest = None if entries or is_security else current.without(patch)
                # Endless recursion belongs to a layer, wherever it exceeded the limit.
                is_ours = is_ours or (isinstance(error, RecursionError) and len(entries) > 1)
                has_answer = not strict and (is_kept or rest is not None)
                if error is not None and (
                    is_refusal(error) or not current.steps or not (is_ours or has_answer)
                ):
                    failures.clear()
                    raise error
                if strict:
                    raise name_patch(error, patch, site)
                if is_security:
                    failures.append(Failure(patch, error, CALL_REFUSED))
                    raise as_refusal(error, patch)
                if is_kept:
                    failures.append(Failure(patch, error, "the call got the release's result"))
                    return entries[0][2]
                if rest is None:
                    failures.append(Failure(patch, error, CALL_FAILED, reached_host=bool(entries)))
                    raise _as_exception(error, patch, site)
                failures.append(Failure(patch, error, "the release's own code answered"))
                current = rest
                error, result = self._try(rest.body, entries, args, kwargs)
                if error is None and (
                    result is not None or not rest.steps or self._may_be_none(entries)
                ):
                    return result
        finally:
            error = None  # its traceback refers to this frame: a cycle
            for failure in failures:
                self._report(composition, failure)

    def _try(
        self, body: Any, entries: list[list[Any]], args: tuple[Any, ...], kwargs: Any
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


def copy_metadata(function: Function, like: Function) -> Function:
    """``functools.wraps``, and the defaults, which no call of ``(*args, **kwargs)`` uses."""
    functools.update_wrapper(function, like)
    made: Any = function
    made.__defaults__ = getattr(like, "__defaults__", None)
    made.__kwdefaults__ = getattr(like, "__kwdefaults__", None)
    return function


def _match_kind(run: Function, like: Function) -> Function:
    """A generator or coroutine function that calls ``run`` once it is resumed, if ``like`` is one.

    It keeps no reference to the arguments, which the release's function may have dropped.
    """

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        stream = run(*args, **kwargs)
        del args, kwargs
        return (yield from stream)

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        waiting = run(*args, **kwargs)
        del args, kwargs
        return await waiting

    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        stream = aiter(run(*args, **kwargs))
        del args, kwargs
        step = anext(stream)
        try:
            while True:
                try:
                    value = await step
                except StopAsyncIteration:
                    return
                try:
                    sent = yield value
                except GeneratorExit:
                    raise
                except BaseException as error:
                    if not hasattr(stream, "athrow"):  # a layer's own iterator
                        raise
                    step = stream.athrow(error)
                else:
                    step = anext(stream) if sent is None else stream.asend(sent)
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()

    code = code_of(inner_function(like))
    flags = code.co_flags if code else 0
    if flags & CO_ASYNC_GENERATOR:
        return async_generator
    if flags & CO_COROUTINE:
        return coroutine
    return generator if flags & CO_GENERATOR else run


def _recorder(original: Function, calls: _Calls) -> Function:
    """Wrap the original; each entry is recorded in the call that it belongs to."""
    is_python = code_of(original) is not None

    def record(*args: Any, **kwargs: Any) -> Any:
        entries = calls.entries
        if entries is None:  # a layer kept a reference beyond its call
            return original(*args, **kwargs)
        entry = [args, kwargs, _PENDING]
        entries.append(entry)
        try:
            result = entry[2] = original(*args, **kwargs)
        except TypeError as error:
            if is_python and error.__traceback__ is not None and not error.__traceback__.tb_next:
                entries.pop()  # it does not accept these arguments: nothing ran
            raise
        return result

    return copy_metadata(record, original)


def _has_returned_once(
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


def name_patch(error: BaseException | None, patch: str, site: str) -> BaseException:
    """The error that strict mode raises; a SystemExit would exit without a message."""
    if not isinstance(error, Exception):
        return _as_exception(error, patch, site)
    error.add_note(f"raised by the patch {patch} of mlx_patches in {site}")
    return error


def _as_exception(error: BaseException | None, patch: str, site: str) -> BaseException:
    """The error that the host gets if the call has no result; never a SystemExit."""
    if isinstance(error, Exception):
        return error
    what = f"returned None in {site}" if error is None else f"failed in {site}: {error!r}"
    made = MlxPatchesError(f"the patch {patch} of mlx_patches {what}")
    made.__cause__ = error
    return made


def as_refusal(error: BaseException | None, patch: str) -> Exception:
    made = ValueError(f"refused: the patch {patch} of mlx_patches could not check this call")
    made.__cause__ = error
    return refusal(made)
