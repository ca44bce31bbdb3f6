"""The one error type of this package."""

from __future__ import annotations


class MlxPatchesError(Exception):
    """Something the user can mend; the message names it and says how.

    Raised for an unknown patch or model, a broken matrix, and (with ``strict=True``) for a
    patch that could not be put in effect. The command line turns it into exit code 2.
    """
