"""Speculative decoding from a prompt cache gives a model caches of its draft model.

Why
    The server hands over one list: the model's caches, and then the draft model's. It is split
    after as many as the model has layers. Gemma 3n and Gemma 4 have fewer caches than layers,
    models that run their layers twice have more: one model reads and writes the other's.
How
    The model is handed on as one that has as many layers as caches.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    The list is split after as many caches as the model makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def generated(
    generate: Callable[..., Any], prompt: Any, model: Any, *args: Any, **kwargs: Any
) -> Any:
    """The tokens of an answer, one by one."""
    if kwargs.get("prompt_cache") is not None:
        count = caches_of(model)
        if count != len(model.layers):
            model = Split(model, count)
    return generate(prompt, model, *args, **kwargs)


def caches_of(model: Any) -> int:
    """How many caches a model makes."""
    return len(sys.modules["mlx_lm.models.cache"].make_prompt_cache(model))


class Split:
    """A model with as many layers as it has caches.

    Args:
        model: the model itself.
        count: of its caches.
    """

    def __init__(self, model: Any, count: int):
        self.model = model
        self.layers = range(count)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model says."""
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


PATCH = Patch(
    id="speculative-split",
    summary="speculative decoding from a prompt cache mixes up two models' caches",
    targets=(Target("mlx-lm", "mlx_lm.generate", "speculative_generate_step", around(generated)),),
    probe="mlx_patches.probes.speculative_split:probe",
    module=__name__,
)
