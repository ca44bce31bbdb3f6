"""Granite and MiniCPM in mlx-vlm answer with garbage: generated tokens are embedded too small.

Why
    These models multiply their embeddings by a factor, 12 in the published configs. mlx-vlm embeds
    a prompt before the language model is called, and the generated tokens inside it:
    ``embed(x) if inputs_embeds is None else inputs_embeds * factor`` multiplies the prompt's alone.
How
    A call without embeddings gets the embeddings of its tokens, which the release then multiplies.
Upstream
    Not fixed in mlx-vlm 0.7.10.
Retire when
    Every supported release multiplies the embeddings of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import MISSING, Patch, Target, around


def called(call: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """The hidden states of ``inputs`` (rows, length)."""
    if embeds_itself(model, inputs, *args, **kwargs):
        kwargs["inputs_embeds"] = model.embed_tokens(inputs)
    return call(model, inputs, *args, **kwargs)


def embeds_itself(*args: Any, **kwargs: Any) -> bool:
    """Whether a call has tokens alone."""
    return kwargs.get("inputs_embeds", MISSING) is None


_CLASSES = {
    "granite": "GraniteModel",
    "granitemoe": "GraniteMoEModel",
    "minicpm": "MiniCPMModel",
    "minicpm3": "MiniCPM3Model",
}

PATCH = Patch(
    id="embedding-scale",
    wrong_alone=" ".join(_CLASSES),
    every_model=True,
    changes_alone=True,
    summary="Granite and MiniCPM in mlx-vlm: generated tokens are embedded 12 times too small",
    targets=tuple(
        Target(
            "mlx-vlm",
            f"mlx_vlm.models.{family}.language",
            f"{kind}.__call__",
            around(called),
            when=embeds_itself,
        )
        for family, kind in _CLASSES.items()
    ),
)
