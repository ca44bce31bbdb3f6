"""Florence-2 in mlx-vlm: wrong images; saved folders do not load; batch_generate loses the prompt.

Why: An image has 577 features: the mean of the others, and those of its places. Published configs
    put the mean first, with a field of ``vision_config``. mlx-vlm looks for it at the top of the
    config, and by default puts the mean last: each feature gets the position of its neighbour. The
    batch engine passes the encoder's output to the first step only: later ones encode the last
    token instead of decoding it. Two prompts with images raise an error about shapes. Transformers
    5 saves another type of the tower and other names of fields and weights. A prompt longer than a
    chunk is cut without its mask, which raises up to 0.6.
How: The field of ``vision_config`` is read, and the names that transformers 5 saves. After the
    first step, the cached keys of the prompt stand for the encoder's output, which the decoder
    reads only to fill this cache. Several prompts with images are refused with the remedy. The
    model names itself as one whose prompts are not cut.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The release reads the field of ``vision_config`` and both spellings, and its batch
    engine decodes.
"""

import re
from typing import Any

from ....core.verbs import Function, Patch, define, refusal, tensors, wrap
from ..._shared.configs import Params, config_target

ORDER = "image_feature_source"
MEAN_FIRST = ["spatial_avg_pool", "temporal_avg_pool"]
SAVED = "florence_vision"  # the type of the tower that transformers 5 saves
_TOWER, _PROJECTION = "model.vision_tower.", "image_projection"
# Patterns of the names of weights that transformers 5 saves, and the published names.
_NAMES = {
    r"^model\.vision_tower": "vision_tower",
    r"^(vision_tower\.convs\.\d+)\.conv": r"\1.proj",
    r"_block\.(conv\d)": r"_block.\1.fn.dw",
    r"(spatial_block)\.norm1": r"\1.window_attn.norm",
    r"(channel_block)\.norm1": r"\1.channel_attn.norm",
    r"_block\.norm2": "_block.ffn.norm",
    r"_attn\.(qkv|proj)": r"_attn.fn.\1",
    r"\.ffn\.fc": ".ffn.fn.net.fc",
    r"^model\.multi_modal_projector\.": "",
    r"^image_projection\.weight": _PROJECTION,
    r"^image_position_embed": "image_pos_embed",
    r"^model\.language_model": "language_model.model",
    r"^lm_head": "language_model.lm_head",
}
# Arguments of calls that encode a prompt, or decode with the encoder's output.
_GIVEN = {
    *("inputs_embeds", "encoder_outputs", "cross_attention_states"),
    *("decoder_input_ids", "decoder_inputs_embeds"),
}


def read_order(params: Params) -> Params:
    """The content of a Florence-2 config, with the fields at its top that published ones have."""
    vision = params.get("vision_config")
    if not isinstance(vision, dict):
        return params
    if vision.get("model_type") == SAVED:
        rows, frames = vision["max_position_embeddings"], vision["max_temporal_embeddings"]
        saved = {
            ORDER: MEAN_FIRST,
            "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": rows},
            "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": frames},
        }
        return {**saved, **params, "vision_config": name_tower(vision)}
    order = vision.get(ORDER)
    return {ORDER: order, **params} if order else params


def name_tower(vision: Params) -> Params:
    """The content of ``vision_config``, with the published names."""
    if vision.get("model_type") != SAVED:
        return vision
    return {**vision, "model_type": "davit", "dim_embed": vision["embed_dim"]}


def rename(weights: Params) -> Params:
    """The checkpoint, with the published names."""
    if not any(name.startswith(_TOWER) for name in weights):
        return weights
    found = {}
    for name, value in weights.items():
        for pattern, new in _NAMES.items():
            name = re.sub(pattern, new, name)
        found[name] = value.T if name == _PROJECTION else value
    return found


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


def keep_prompt(_: Any) -> bool:
    """Whether a prompt must be kept whole; the encoder reads it at once."""
    return True


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
        config_target("mlx-vlm", "florence2", name_tower, kind="VisionConfig"),
        *tensors("mlx_vlm.models.florence2.florence2:Model.sanitize", rename),
        *wrap("mlx_vlm.models.florence2.language:LanguageModel.__call__", decode_cached),
        *define(
            "mlx_vlm.models.florence2.florence2:Model.no_chunked_prefill",
            keep_prompt,
            fingerprint_of=("Model",),
            defines_new_attribute=True,
        ),
    ),
)
