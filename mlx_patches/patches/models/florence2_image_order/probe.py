"""Reads a config with the order of image features, and decodes after a prompt in the cache."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, mx

ORDER = ["spatial_avg_pool", "temporal_avg_pool"]
WIDTH = 8
_SIZES = ("decoder_attention_heads", "encoder_attention_heads", "decoder_layers", "encoder_layers")


def probe(target: Target) -> Result:
    """Red if the config object has another order, or if the prompt is forgotten."""
    module: Any = module_of(target)
    if target.name == "LanguageModel.__call__":
        return probe_decoding(module)
    kind = module.ModelConfig
    if "image_feature_source" not in kind.__dataclass_fields__:
        raise NotApplicable("this release's Florence-2 reads no order")
    config = kind.from_dict(
        {"vision_config": {"image_feature_source": ORDER}, "text_config": {}, "vocab_size": 8}
    )
    return Result(config.image_feature_source != ORDER, f"{config.image_feature_source} are read")


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
