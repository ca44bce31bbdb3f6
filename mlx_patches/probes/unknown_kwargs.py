"""Calls a language model with the keyword arguments that engines forward.

The arguments are bound before the call does anything, so no model is built: what a call without
one fails at says whether it got that far.
"""

from __future__ import annotations

from typing import Any

from ..core.patch import Target
from . import Result
from .offset_alias import cache_of

FORWARDED = ("n_to_process", "attention_mask_4d", "rope_deltas", "position_ids")


def probe(target: Target) -> Result:
    """Red where an argument that engines forward is refused."""
    model_class = cache_of(target)
    refused = [name for name in FORWARDED if not takes(model_class, name)]
    if refused:
        return Result(True, f"refuses {', '.join(refused)}")
    return Result(False, "takes what engines forward")


def takes(model_class: Any, name: str) -> bool:
    """True where the class's call does not refuse this keyword argument."""
    try:
        model_class.__call__(object(), None, cache=None, **{name: None})
    except TypeError as error:
        return f"unexpected keyword argument '{name}'" not in str(error)
    except Exception:  # it went on, without a model
        return True
    return True
