"""The fields of the request that a host handles, for code that the host does not pass them to."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

# The largest ``top_logprobs`` that an API allows.
TOP_LOGPROBS = 20
# Of the request that a task or its threads handle.
FIELDS: ContextVar[Mapping[str, Any]] = ContextVar("mlx_patches_fields")


def read_number(name: str) -> Any:
    """A number among the fields; None if there is none, or no request."""
    value = FIELDS.get({}).get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
