"""mlx-lm speculative decoding from a prompt cache mixes up the two models' caches.

Why: The server passes one list: the model's caches, then the draft model's. The release splits it
    by the model's number of layers. Gemma 3n and Gemma 4 have fewer caches than layers, models that
    run their layers twice have more: one model then reads and writes the other's caches.
How: The model is passed on as a wrapper that has as many layers as the model has caches.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: The release splits the list by the model's number of caches.
"""

import sys
from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.parts import Overlay


def match_caches(model: Any, prompt_cache: Any) -> Any:
    """The model, with as many layers as it has caches if a list of caches is split by them."""
    if prompt_cache is None:
        return model
    count = count_caches(model)
    return model if count == len(model.layers) else Overlay(model, layers=range(count))


def count_caches(model: Any) -> int:
    return len(sys.modules["mlx_lm.models.cache"].make_prompt_cache(model))


PATCH = Patch(
    id="speculative-split",
    targets=argument("mlx_lm.generate:speculative_generate_step", "model", match_caches),
)
