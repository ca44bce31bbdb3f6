"""A prompt longer than a piece crashes a model whose call names its tokens otherwise.

Why
    mlx-vlm reads a prompt of more than ``prefill_step_size`` tokens in pieces, and gives each as
    ``inputs=``. Six language models name this argument ``x``, ``tokens`` or ``input_ids``: they
    raise TypeError, and the request is not answered.
How
    ``inputs=`` is passed on as the first argument.
Upstream
    Not reported; present in mlx-vlm 0.7.10.
Retire when
    The probe is green without the patch for every supported release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import at, vlm_models

GIVEN = "inputs"  # what mlx-vlm calls the tokens of a piece
_FAMILIES = ("phi", "phixtral", "qwen", "recurrent_gemma", "stablelm", "zaya1_vl")


def call_with_tokens(call: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a language model with its tokens (batch, length) in the first place."""
    if are_named(model, *args, **kwargs):
        args = (kwargs.pop(GIVEN),)
    return call(model, *args, **kwargs)


def are_named(model: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the tokens were given by name."""
    return not args and GIVEN in kwargs


PATCH = Patch(
    id="token-names",
    severity="crash",
    summary=(
        "Phi, Qwen, StableLM, ZAYA1 VL and others in mlx-vlm crash if a prompt needs several chunks"
    ),
    targets=at(
        vlm_models(*_FAMILIES),
        {"LanguageModel.__call__": around(call_with_tokens)},
        when=are_named,
    ),
)
