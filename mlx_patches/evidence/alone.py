"""Patches of models that are wrong for a request alone, which no comparison with it can show."""

from __future__ import annotations

from collections.abc import Mapping

# Patch to the model whose published configs all run the code that it repairs. That another model
# imports the code does not say that it is wrong: GLM 5 has DeepSeek V3.2's indexer and rotates it
# in pairs, and a dense LFM2 has no experts.
WRONG_ALONE: Mapping[str, str] = {
    "indexer-rope": "deepseek_v32",
    "lfm2-moe-routing": "lfm2_moe",
    "mimo-value-scale": "mimo_v2_flash",
    "nemotron-time-steps": "nemotron_h",
    "phimoe-routing": "phimoe",
}
# They change what one sequence gets; their probes say to what.
CHANGE_ALONE = frozenset(WRONG_ALONE) | {"rope-input"}
