"""Reads a config whose ``vision_config`` names the order of image features."""

from ....probes.kit import NotApplicable, Result, Target, module_of

ORDER = ["spatial_avg_pool", "temporal_avg_pool"]


def probe(target: Target) -> Result:
    """Red if the config object has another order."""
    kind = module_of(target).ModelConfig
    if "image_feature_source" not in kind.__dataclass_fields__:
        raise NotApplicable("this release's Florence-2 reads no order")
    config = kind.from_dict(
        {"vision_config": {"image_feature_source": ORDER}, "text_config": {}, "vocab_size": 8}
    )
    return Result(config.image_feature_source != ORDER, f"{config.image_feature_source} are read")
