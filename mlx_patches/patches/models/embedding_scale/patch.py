"""Granite and MiniCPM in mlx-vlm: generated tokens are embedded 12 times too small.

Why: These models multiply their embeddings by a factor, 12 in the published configs. mlx-vlm embeds
    a prompt before it calls the language model, which embeds generated tokens itself: ``embed(x) if
    inputs_embeds is None else inputs_embeds * factor`` scales only the prompt.
How: A call without embeddings gets those of its tokens, which the release then multiplies.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: Every supported release multiplies the embeddings of both.
"""

from typing import Any

from ....core.verbs import Patch, argument, vlm_family


def embed_tokens(model: Any, /, inputs: Any) -> Any:
    return model.embed_tokens(inputs)


def has_only_tokens(inputs_embeds: Any) -> bool:
    return inputs_embeds is None


_CALLS = (
    *vlm_family("granite", "GraniteModel.__call__"),
    *vlm_family("granitemoe", "GraniteMoEModel.__call__"),
    *vlm_family("minicpm", "MiniCPMModel.__call__"),
    *vlm_family("minicpm3", "MiniCPM3Model.__call__"),
)

PATCH = Patch(
    id="embedding-scale",
    wrong_solo="granite granitemoe minicpm minicpm3",
    every_model=True,
    targets=argument(_CALLS, "inputs_embeds", embed_tokens, when=has_only_tokens),
)
