"""Embeds an image without a width in the config's top level, as in published configs."""

from typing import Any

from ....lab.image_scenarios import whole_of
from ....lab.whole import IMAGE
from ....probes.kit import Result, Target, compare_arrays, mx, require_own, tiny_of

TOLERANCE = 1e-3
# The default of the field that published configs lack.
DEFAULT = 2048


def probe(target: Target) -> Result:
    """Red if the language model receives other features than the projector returns."""
    require_own(target)
    whole = whole_of(tiny_of(target))
    model = whole.module
    model.config.hidden_size = DEFAULT
    count = whole.tokens.count(IMAGE)
    width = model.config.text_config.hidden_size
    features = mx.random.normal((1, count, width), key=mx.random.key(3))
    received = embed(model, [IMAGE] * count + [1, 2], features)[:, :count]
    return compare_arrays(received * scale_of(model), features, TOLERANCE, "image features'")


def embed(model: Any, tokens: list[int], features: Any) -> Any:
    """The embeddings of a prompt with these image features."""
    ids = mx.array([tokens])
    given = (features, mx.zeros((*ids.shape, features.shape[-1])), ids, mx.ones_like(ids))
    if hasattr(model, "prepare_inputs_for_multimodal"):
        config = model.config
        names = (config.hidden_size, config.pad_token_id, config.image_token_index)
        return model.prepare_inputs_for_multimodal(*names, *given)[0]
    return model._prepare_inputs_for_multimodal(*given)[0]


def scale_of(model: Any) -> float:
    """What the language model multiplies its embeddings by."""
    seen = []

    def layer(x: Any, *_: Any) -> Any:
        seen.append(x)
        return x

    language = model.language_model.model
    layers, language.layers = language.layers, [layer] * len(language.layers)
    try:
        language(
            mx.array([[1]]), inputs_embeds=mx.ones((1, 1, model.config.text_config.hidden_size))
        )
    finally:
        language.layers = layers
    scale: float = seen[0][0, 0, 0].item()
    return scale
