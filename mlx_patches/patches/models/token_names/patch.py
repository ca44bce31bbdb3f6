"""Phi, Qwen, StableLM, ZAYA1 VL and others in mlx-vlm crash if a prompt needs several chunks.

Why: mlx-vlm feeds a prompt of more than ``prefill_step_size`` tokens in chunks, each as
    ``inputs=``. Six language models call this parameter ``x``, ``tokens`` or ``input_ids``, so the
    call raises TypeError.
How: ``inputs=`` is passed on as the first argument.
Upstream: Not reported; present in mlx-vlm 0.7.10.
Retire when: The probe is green without the patch for every supported release.
"""

from typing import Any

from ....core.verbs import Function, Patch, around, define, vlm_family

GIVEN = "inputs"  # mlx-vlm's name for the tokens of a chunk
_FAMILIES = "phi phixtral qwen recurrent_gemma stablelm zaya1_vl"


def call_with_tokens(call: Function, model: Any, **kwargs: Any) -> Any:
    return call(model, kwargs.pop(GIVEN), **kwargs)


def is_named(model: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the tokens are passed by name."""
    return not args and GIVEN in kwargs


PATCH = Patch(
    id="token-names",
    severity="crash",
    # Not ``wrap``: the release's own parameters reject the call.
    targets=define(
        vlm_family(_FAMILIES, "LanguageModel.__call__"), around(call_with_tokens), when=is_named
    ),
)
