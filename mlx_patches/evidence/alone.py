"""Patches for models whose results are wrong even for a single request.

The lab compares a batch with single requests, so it cannot show these defects.
"""

from __future__ import annotations

from collections.abc import Mapping

# Patch to the model whose published configs all run the code that it repairs. Other models that
# import the code are not necessarily wrong: GLM 5 has DeepSeek V3.2's indexer and rotates it in
# pairs, and a dense LFM2 has no experts.
WRONG_ALONE: Mapping[str, str] = {
    "indexer-rope": "deepseek_v32",
    "lfm2-moe-routing": "lfm2_moe",
    "mimo-value-scale": "mimo_v2_flash",
    "nemotron-time-steps": "nemotron_h",
    "phimoe-routing": "phimoe",
}
# Patches that change the result of a single sequence; their probes define the right result.
CHANGE_ALONE = frozenset(WRONG_ALONE) | {"rope-input"}
