"""ERNIE 4.5 VL in mlx-vlm runs images through the experts for text.

Why: Each layer has experts for text and experts for images, and picks by ``token_type_ids``. The
    model's own call makes them; generation calls the language model without them.
How: A prompt chunk with image tokens gets their types. Chunks of text are run as before.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: Generation passes the types, or the language model makes them.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap

_TYPES = "token_type_ids"


def pass_types(call: Function, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the language model with the types of a prompt's tokens if some are an image's."""
    if kwargs.get(_TYPES) is None and inputs is not None and inputs.shape[-1] > 1:
        types = is_image(model.config, inputs)
        if types.any().item():
            kwargs[_TYPES] = types.astype(inputs.dtype)
    return call(model, inputs, *args, **kwargs)


def is_image(config: Any, ids: Any) -> Any:
    return (ids == config.image_token_id) | (ids == config.video_token_id)


PATCH = Patch(
    id="ernie-image-experts",
    every_model=True,
    wrong_solo="ernie4_5_moe_vl",
    targets=wrap("mlx_vlm.models.ernie4_5_moe_vl.language:LanguageModel.__call__", pass_types),
)
