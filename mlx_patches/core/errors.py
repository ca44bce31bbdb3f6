"""Errors and warnings of this package."""

from __future__ import annotations


class MlxPatchesError(Exception):
    """Something the user can repair; the message names it and says how.

    Raised for an unknown patch or model, a broken matrix, and (with ``strict=True``) for a
    patch that could not be put in effect. The command line turns it into exit code 2.
    """


class MlxPatchesWarning(UserWarning):
    """What a user should know and may ignore: an old patch id, what a batch drops."""


def refusal(error: Exception) -> Exception:
    """Mark an error that a patch raises on purpose: it goes to the host as it is.

    Any other error of a patch is a failure, and the release's own code answers the call.
    """
    error.__mlx_patches_refusal__ = True  # type: ignore[attr-defined]
    return error


def is_refusal(error: BaseException) -> bool:
    """Whether a patch raised an error on purpose."""
    return getattr(error, "__mlx_patches_refusal__", False) is True
