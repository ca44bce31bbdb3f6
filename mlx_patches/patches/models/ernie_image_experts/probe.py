"""Calls a tiny language model with an image's tokens, without and with their types."""

from types import SimpleNamespace

from ....probes.kit import Result, Target, import_module, module_of, mx

IMAGE = 7
SMALL = ("hidden_size", "intermediate_size", "vocab_size")
TEXT = {
    **dict.fromkeys(SMALL, 32),
    **dict.fromkeys(("num_hidden_layers", "num_key_value_heads", "moe_k"), 1),
    "model_type": "ernie4_5_moe_vl",
    "num_attention_heads": 2,
    "mrope_section": [3, 3, 2],
    "moe_num_experts": [2, 2],
    "moe_intermediate_size": [16, 16],
    "moe_num_shared_experts": 0,
    "moe_layer_start_index": [0, 0],
    "moe_layer_end_index": [0, 0],
}


def probe(target: Target) -> Result:
    """Red if image tokens give other logits than image tokens whose types are passed."""
    module = module_of(target)
    config = import_module(module.TextConfig.__module__).TextConfig.from_dict(TEXT)
    mx.random.seed(0)
    model = module.LanguageModel(config, SimpleNamespace(image_token_id=IMAGE, video_token_id=8))
    ids = mx.array([[3, IMAGE, IMAGE, 4]])
    places = mx.broadcast_to(mx.arange(ids.shape[1])[None, :, None], (*ids.shape, 3))
    own, typed = (
        model(ids, position_ids=places, **types).logits
        for types in ({}, {"token_type_ids": (ids == IMAGE).astype(mx.int32)})
    )
    off = mx.abs(own - typed).max().item()
    return Result(off > 1e-6, f"the logits of an image's tokens differ by {off:.2g}", off)
