"""Florence-2 in mlx-vlm: wrong images; batch_generate forgets the prompt after one token.

Why: An image has 577 features: the mean of the others, and those of its places. Published configs
    put the mean first, with a field of ``vision_config``. mlx-vlm looks for it at the top of the
    config, and by default puts the mean last: each feature gets the position of its neighbour. The
    batch engine passes the encoder's output to the first step only: later ones encode the last
    token instead of decoding it. Two prompts with images raise an error about shapes.
How: The field of ``vision_config`` is read. After the first step, the cached keys of the prompt
    stand for the encoder's output, which the decoder reads only to fill this cache. Several prompts
    with images are refused with the remedy.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The release reads the field of ``vision_config``, and its batch engine decodes.
"""

from typing import Any

from ....core.verbs import Function, Patch, refusal, wrap
from ..._shared.configs import Params, config_target

ORDER = "image_feature_source"
# Arguments of calls that encode a prompt, or decode with the encoder's output.
_GIVEN = {
    *("inputs_embeds", "encoder_outputs", "cross_attention_states"),
    *("decoder_input_ids", "decoder_inputs_embeds"),
}


def read_order(params: Params) -> Params:
    """The content of a Florence-2 config, with the order of image features at its top."""
    vision = params.get("vision_config")
    order = vision.get(ORDER) if isinstance(vision, dict) else None
    return {ORDER: order, **params} if order else params


def decode_cached(call: Function, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Decode a token after the prompt in the cache, if nothing else is given."""
    refuse_rows(kwargs.get("attention_mask"))
    keys = find_keys(kwargs.get("cache"))
    if keys is not None and len(args) < 2 and all(kwargs.get(name) is None for name in _GIVEN):
        kwargs["encoder_outputs"] = keys
    return call(model, *args, **kwargs)


def find_keys(cache: Any) -> Any:
    """The prompt's keys (rows, tokens, heads, width) that the first layer attends to, or None."""
    keys = cache[0][-1].keys if cache else None
    return None if keys is None else keys.swapaxes(1, 2)


def refuse_rows(mask: Any) -> None:
    """Refuse several rows with a mask: it does not fit their scores."""
    if mask is not None and len(mask) > 1:
        text = "a batch of florence2 is not supported by this release of mlx-vlm"
        raise refusal(ValueError(f"{text}: send one request at a time"))


PATCH = Patch(
    id="florence2-image-order",
    every_model=True,
    wrong_solo="florence2",
    targets=(
        config_target("mlx-vlm", "florence2", read_order),
        *wrap("mlx_vlm.models.florence2.language:LanguageModel.__call__", decode_cached),
    ),
)
