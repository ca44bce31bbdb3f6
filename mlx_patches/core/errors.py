"""Errors and warnings of this package."""

from opcode import opmap


class MlxPatchesError(Exception):
    """An error that the user can repair; the message names the cause and the remedy.

    Raised for an unknown patch or model, a broken matrix, and (with ``strict=True``) for a
    patch that could not be put in effect. The command line turns it into exit code 2.
    """


class MlxPatchesWarning(UserWarning):
    """``apply`` could not put a needed patch in effect, so the defect stays."""


def refusal(error: Exception) -> Exception:
    """Mark an error that a patch raises on purpose: the guard passes it on to the host.

    The guard treats any other error of a patch as a failure, and falls back to the release's code.
    """
    error.__mlx_patches_refusal__ = True  # type: ignore[attr-defined]
    return error


def is_interrupt(error: BaseException) -> bool:
    """Whether the user interrupted the process; a ``raise`` in a package's code does not count.

    A signal raises KeyboardInterrupt between two instructions.
    """
    trace = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] != opmap["RAISE_VARARGS"]


def is_refusal(error: BaseException) -> bool:
    return getattr(error, "__mlx_patches_refusal__", False) is True
