"""Embeds a short text beside a long one with a tiny model, in each type."""

from ....probes.encoders import build_encoder, compare_with_solo
from ....probes.kit import Result, Target, require

_LENGTHS = ((40, 3), (40, 1), (17, 16), (9, 9))  # of the long text, and of the short one
TYPES = ("float32", "float16", "bfloat16")


def probe(target: Target) -> Result:
    """Red if the short text's embedding is not that of its solo run."""
    require(target)
    worst = 0.0
    for name in TYPES:
        model = build_encoder(target.module, name)
        for length, short in _LENGTHS:
            off = compare_with_solo(model, length, short, left="qwen3" in target.module)
            if not off < 0.02:
                return Result(True, f"{name}, {short} tokens beside {length}: off by {off}")
            worst = max(worst, off)
    return Result(False, f"off by at most {worst:.4f}")
