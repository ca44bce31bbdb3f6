"""Embeds an image with a tiny model of the type ``cohere2_vision``."""

from ....lab.image_scenarios import whole_of
from ....lab.whole import IMAGE, embed_prompt
from ....probes.kit import Result, Target, compare_arrays, mx, require_own, tiny_of


def probe(target: Target) -> Result:
    """Red if the projector receives other features than the tower's normalized output."""
    require_own(target)
    whole = whole_of(tiny_of(target))
    model = whole.module
    model.config.model_type = "cohere2_vision"
    tokens = list(whole.tokens)
    images = whole.images.inputs(tokens, [1])
    pixels = images["pixel_values"].transpose(0, 2, 3, 1)
    embedded = embed_prompt(model, tokens, images)["inputs_embeds"][0]
    features = model.multi_modal_projector(model.vision_tower(pixels)[0])
    shown = mx.array([place for place, token in enumerate(tokens) if token == IMAGE])
    return compare_arrays(
        embedded[shown], features.reshape(len(shown), -1), 1e-4, "image features'"
    )
