"""The fields of the request that a host handles, for code that the host does not pass them to."""

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

# The largest ``top_logprobs`` that an API allows.
TOP_LOGPROBS = 20
# MLX turns an integer into one of 64 bits.
LARGEST = 9e18
# Of the request that a task or its threads handle.
FIELDS: ContextVar[Mapping[str, Any]] = ContextVar("mlx_patches_fields")


def read_number(name: str) -> Any:
    value = FIELDS.get({}).get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def find_bias_fault(bias: Any) -> str:
    """What is wrong with a request's ``logit_bias``; empty if it is right, or none."""
    if not isinstance(bias, dict):
        return "" if bias is None else "logit_bias: not an object of token ids and numbers"
    for token, value in bias.items():
        if not str(token).isdecimal():
            return f"logit_bias: {str(token)[:20]!r} is not a token id"
        # NaN makes all probabilities NaN, as does a number that is infinite in float32.
        least = -LARGEST if isinstance(value, int) else -math.inf
        if not (isinstance(value, (int, float)) and least <= value <= LARGEST):
            return f"logit_bias: {str(value)[:20]!r} is not a number up to {LARGEST:g}"
    return ""
