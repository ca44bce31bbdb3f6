"""mlx-vlm: about 20 models crash on keyword arguments that an engine forwards.

Why: mlx-vlm's engine, or a host's, forwards arguments that some families need (``n_to_process``,
    ``attention_mask_4d``, ``rope_deltas``, ``position_ids``) to every language model. About twenty
    models accept four arguments and no ``**kwargs``, so every request raises TypeError.
How: Keyword arguments that the model does not accept are dropped, as ``**kwargs`` does upstream.
Upstream: mlx-vlm adds ``**kwargs`` to most of them in 0.3.10, to the last in 0.5.0.
Retire when: No supported release is older than mlx-vlm 0.5.0.
"""

import functools
import inspect
from typing import Any

from ....core.verbs import Patch, define, vlm_family

_FAMILIES = """
    aya_vision deepseek_vl_v2 deepseekocr fastvlm florence2 gemma3 idefics2 idefics3 internvl_chat
    kimi_vl lfm2_vl llama4 llava llava_bunny llava_next mistral3 mllama molmo multi_modality
    paligemma pixtral
"""


def drop_unknown(call: Any) -> Any:
    """A call that drops keyword arguments which the original does not accept."""
    names = find_accepted(call)

    @functools.wraps(call)
    def call_with_known(*args: Any, **kwargs: Any) -> Any:
        if names is not None and not kwargs.keys() <= names:
            kwargs = {name: value for name, value in kwargs.items() if name in names}
        return call(*args, **kwargs)

    return call_with_known


def find_accepted(call: Any) -> frozenset[str] | None:
    """The keyword arguments that a function accepts; None if it accepts any."""
    parameters = inspect.signature(call).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


PATCH = Patch(
    id="unknown-kwargs",
    severity="crash",
    targets=define(vlm_family(_FAMILIES, "LanguageModel.__call__"), drop_unknown),
)
