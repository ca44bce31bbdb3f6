"""Reads a config with the order of image features, and decodes after a prompt in the cache."""

import inspect
import sys
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, mx, require_module

ORDER, SAVED = ["spatial_avg_pool", "temporal_avg_pool"], "florence_vision"
WIDTH = 8
_LENGTHS = ("max_position_embeddings", "max_temporal_embeddings")
_SIZES = ("decoder_attention_heads", "encoder_attention_heads", "decoder_layers", "encoder_layers")


def probe(target: Target) -> Result:
    """Red if the config object has another order, or if the prompt is forgotten."""
    module: Any = module_of(target)
    if target.name == "LanguageModel.__call__":
        return probe_decoding(module)
    if target.name == "Model.sanitize":
        return probe_weights(module)
    if target.name == "Model.no_chunked_prefill":
        return probe_chunks(module.Model)
    if target.name.startswith("VisionConfig"):
        tower = module.VisionConfig.from_dict({"model_type": SAVED, "embed_dim": [WIDTH]})
        return Result(tower.dim_embed != [WIDTH], f"a tower {tower.model_type} {tower.dim_embed}")
    kind = module.ModelConfig
    if "image_feature_source" not in kind.__dataclass_fields__:
        raise NotApplicable("this release's Florence-2 reads no order")
    towers = (
        {"image_feature_source": ORDER},
        {"model_type": SAVED, "embed_dim": [WIDTH], **dict.fromkeys(_LENGTHS, WIDTH)},
    )
    parts = ({"vision_config": tower, "text_config": {}, "vocab_size": 8} for tower in towers)
    orders = [kind.from_dict(part).image_feature_source for part in parts]
    return Result(orders != [ORDER] * 2, f"{orders} are read")


def probe_weights(module: Any) -> Result:
    """Red if the weights that transformers saves do not get the names of the model."""
    tower = "blocks.0.0.spatial_block."
    names = {
        "model.vision_tower.convs.0.conv.weight": "vision_tower.convs.0.proj.weight",
        f"model.vision_tower.{tower}conv1.bias": f"vision_tower.{tower}conv1.fn.dw.bias",
        f"model.vision_tower.{tower}norm1.bias": f"vision_tower.{tower}window_attn.norm.bias",
        f"model.vision_tower.{tower}norm2.bias": f"vision_tower.{tower}ffn.norm.bias",
        f"model.vision_tower.{tower}window_attn.qkv.bias": (
            f"vision_tower.{tower}window_attn.fn.qkv.bias"
        ),
        f"model.vision_tower.{tower}ffn.fc1.bias": f"vision_tower.{tower}ffn.fn.net.fc1.bias",
        "model.multi_modal_projector.image_projection.weight": "image_projection",
        "model.language_model.shared.weight": "language_model.model.shared.weight",
    }
    found = module.Model.sanitize({name: mx.zeros((2, 3)) for name in names})
    missing = [name for name in names.values() if name not in found]
    turned = not missing and found["image_projection"].shape == (3, 2)
    return Result(not turned, f"lacks {missing}"[:160])


def probe_chunks(kind: Any) -> Result:
    """Red if ``generate_step`` cuts a prompt that is longer than a chunk."""
    generate_step = require_module("mlx_vlm.generate").generate_step
    if "prefill_step_size" not in inspect.signature(generate_step).parameters:
        raise NotApplicable("this release cuts no prompts")
    source = inspect.getsource(sys.modules[generate_step.__module__])
    if "chunked_prefill" not in source:
        raise NotApplicable("this release cuts every prompt")
    lengths: list[int] = []

    def call(*args: Any, inputs_embeds: Any = None, **_: Any) -> Any:
        lengths.append(inputs_embeds.shape[1] if inputs_embeds is not None else args[0].shape[1])
        states = {"encoder_outputs": None, "cross_attention_states": None}
        return SimpleNamespace(logits=mx.zeros((1, 1, WIDTH)), **states)

    class Stub(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            self.language_model = call

        def get_input_embeddings(self, ids: Any, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(inputs_embeds=mx.zeros((*ids.shape, WIDTH)), to_dict=dict)

    ids = mx.zeros((1, 9), dtype=mx.int32)
    next(generate_step(ids, Stub(), None, None, prompt_cache=[], prefill_step_size=4))
    return Result(lengths[0] != 9, f"a prompt of 9 tokens is cut into {lengths}")


def probe_decoding(module: Any) -> Result:
    """Red if the logits of a token depend on whether the encoder's output is passed."""
    mx.random.seed(0)
    sizes = {**dict.fromkeys(_SIZES, 1), "decoder_ffn_dim": WIDTH, "encoder_ffn_dim": WIDTH}
    model = module.LanguageModel(module.TextConfig(d_model=WIDTH, vocab_size=WIDTH, **sizes))
    prompt, start = mx.random.normal((1, 5, WIDTH)), mx.random.normal((1, 1, WIDTH))
    logits = []
    for passes in (True, False):
        cache = model.make_cache()
        first = model(None, inputs_embeds=prompt, decoder_inputs_embeds=start, cache=cache)
        passed = {"encoder_outputs": first.encoder_outputs} if passes else {}
        logits.append(model(mx.array([[3]]), cache=cache, **passed).logits)
    off = mx.abs(logits[0] - logits[1]).max().item()
    try:
        rows = {
            "attention_mask": mx.ones((2, 5)),
            "decoder_inputs_embeds": mx.tile(start, (2, 1, 1)),
        }
        model(None, inputs_embeds=mx.tile(prompt, (2, 1, 1)), cache=model.make_cache(), **rows)
    except ValueError as error:
        refused = "one request at a time" in str(error)
        return Result(off > 1e-5 or not refused, f"off by {off:.2g}; {error}"[:160], off)
    return Result(off > 1e-5, f"off by {off:.2g}", off)
