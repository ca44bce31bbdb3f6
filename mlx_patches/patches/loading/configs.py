"""A config class that reads names of other releases: what a patch puts in ``from_dict``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ...core.errors import refusal

Params = dict[str, Any]
BASE = "mlx_lm.models.base:BaseModelArgs"


def reads(
    complete: Callable[[Params], Params],
    base: str = BASE,
    then: Callable[[Any, Params], None] | None = None,
) -> Callable[[Any], Any]:
    """The factory of a class's ``from_dict``, which the release has in a base class alone.

    Args:
        complete: what ``config.json`` says to what the class reads.
        base: the base class, ``module:name``.
        then: is given what was made, and what ``config.json`` says.
    """
    module, _, name = base.partition(":")

    def from_dict(cls: Any, params: Params) -> Any:
        """A config of what ``config.json`` says."""
        plain = getattr(importlib.import_module(module), name).from_dict.__func__
        completed = complete(params)
        try:
            args = plain(cls, completed)
        except Exception as error:  # the release's word on a config, not a failure of ours
            raise refusal(error) from None
        if then is not None:
            then(args, params)
        return args

    return lambda original: classmethod(from_dict)
