"""A ``from_dict`` for config classes that also reads keys which releases ignore."""

import importlib
from collections.abc import Callable
from typing import Any

from ...core.verbs import Target, add, refusal

Params = dict[str, Any]
# By distribution: the module and the name of the class that its config classes inherit from.
_BASES = {
    "mlx-lm": ("mlx_lm.models.base", "BaseModelArgs"),
    "mlx-vlm": ("mlx_vlm.models.base", "BaseModelConfig"),
}
# The ``from_dict`` that all config classes of a package inherit.
FROM_DICT = tuple(f"{module}:{name}.from_dict" for module, name in _BASES.values())


def config_target(
    distribution: str,
    family: str,
    complete: Callable[[Params], Params],
    then: Callable[[Any, Params], None] | None = None,
    kind: str = "",
) -> Target:
    """The ``from_dict`` of a family's config class, which the release defines only in its base.

    Args:
        complete: converts the content of ``config.json`` to the keys that the class reads.
        then: called with the new config object and the content of ``config.json``.
        kind: the class, if it is not that of the whole config.
    """
    module, name = _BASES[distribution]

    def from_dict(cls: Any, params: Params) -> Any:
        plain = getattr(importlib.import_module(module), name).from_dict.__func__
        completed = complete(params)
        try:
            args = plain(cls, completed)
        except Exception as error:  # the release rejects the config: not a failure of the patch
            raise refusal(error) from None
        if then is not None:
            then(args, params)
        return args

    lm = distribution == "mlx-lm"
    kind = kind or ("ModelArgs" if lm else "ModelConfig")
    where = f"mlx_lm.models.{family}" if lm else f"mlx_vlm.models.{family}.config"
    (target,) = add(f"{where}:{kind}.from_dict", classmethod(from_dict), kind)
    return target
