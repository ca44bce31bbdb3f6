"""Compares the frequencies of gpt-oss's published rope settings with those of OpenAI's code."""

from typing import Any

from ....probes.kit import Result, Target, config_class, module_of, mx, require

_SCALING: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
# The wavelengths, divided by two pi, that OpenAI's code computes for a head's pairs from the ninth.
FIRST = 8
EXPECTED = (19.6799, 31.5401, 51.7197, 86.266, 147.168, 259.043, 477.602, 950.027, 2190.66, 7732.83)
TOLERANCE = 1e-4


def probe(target: Target) -> Result:
    """Red if a frequency differs."""
    require(target)
    config = config_class(target.distribution, "gpt_oss").from_dict({"rope_scaling": _SCALING})
    rope = module_of(target).AttentionBlock(config).rope
    expected = mx.array(EXPECTED)
    actual = rope._freqs[FIRST : FIRST + len(EXPECTED)]
    worst = mx.abs(actual / expected - 1).max().item()
    return Result(not worst <= TOLERANCE, f"a wavelength is off by {worst:.2g} of its value", worst)
