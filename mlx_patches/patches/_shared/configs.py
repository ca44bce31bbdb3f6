"""A ``from_dict`` for config classes that also reads the keys of other releases."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ...core.errors import refusal
from ...core.patch import Target, around

Params = dict[str, Any]
BASE = "mlx_lm.models.base:BaseModelArgs"
VLM_BASE = "mlx_vlm.models.base:BaseModelConfig"


def reads(
    complete: Callable[[Params], Params],
    base: str = BASE,
    then: Callable[[Any, Params], None] | None = None,
) -> Callable[[Any], Any]:
    """A factory for a class's ``from_dict``, which in the release only its base class has.

    Args:
        complete: turns the content of ``config.json`` into what the class reads.
        base: the base class, as ``module:name``.
        then: called with the new config object and the content of ``config.json``.
    """
    module, _, name = base.partition(":")

    def from_dict(cls: Any, params: Params) -> Any:
        """Make a config object from the content of ``config.json``."""
        plain = getattr(importlib.import_module(module), name).from_dict.__func__
        completed = complete(params)
        try:
            args = plain(cls, completed)
        except Exception as error:  # the release rejects the config: not a failure of the patch
            raise refusal(error) from None
        if then is not None:
            then(args, params)
        return args

    return lambda original: classmethod(from_dict)


def every_from_dict(wrapper: Callable[..., Any], supports: bool = False) -> tuple[Target, ...]:
    """The ``from_dict`` that the config classes of a package inherit, in both packages.

    Args:
        wrapper: called with it, the class and the content of ``config.json``.
        supports: see ``Target``.
    """
    bases = {"mlx-lm": BASE, "mlx-vlm": VLM_BASE}
    return tuple(
        Target(place, module, f"{kind}.from_dict", around(wrapper), supports=supports)
        for place, base in bases.items()
        for module, _, kind in [base.partition(":")]
    )
