"""``mlx_vlm.server`` gives every request without a seed the same sample.

Why
    A request without a seed is sampled with seed 0, and a token is drawn from the seed and its
    position alone. The same prompt then gets the same answer at any temperature, in every retry
    and in every row of a batch: several answers to one prompt are all the same.
How
    A sampler without a seed draws one, once a request. The ``seed`` of a request that was sent
    without one reads as None; a seed that was sent, also 0, produces the same answer as before.
Upstream
    Reported as mlx-vlm #1818. Not fixed in mlx-vlm 0.7.10; mlx-vlm #1844 is open.
Retire when
    The server draws a seed where a request has none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ....core.patch import Attribute, Patch, Target, around, stored


def seeded(
    init: Callable[..., None], sampler: Any, *args: Any, seed: int | None = None, **kwargs: Any
) -> None:
    """A sampler's ``__init__``, with a drawn seed if it gets none."""
    init(sampler, *args, seed=draw_seed() if seed is None else seed, **kwargs)


def draw_seed() -> int:
    """A random seed of 32 bits, as many as a sampler reads."""
    return secrets.randbits(32)


def sent_seed(request: Any) -> int | None:
    """The seed that a request was sent with; None without one, whatever the default is."""
    seed = stored(request, "seed")
    return seed if "seed" in request.model_fields_set else None


PATCH = Patch(
    id="vlm-fresh-seed",
    severity="feature",
    every_model=True,
    summary="mlx_vlm.server returns the same sample for every request without a seed",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.server.generation",
            "_PositionedTargetSampler.__init__",
            around(seeded),
        ),
        Target(
            "mlx-vlm",
            "mlx_vlm.server.schemas",
            "VLMRequest.seed",
            lambda original: Attribute("seed", sent_seed),
            fingerprint_of=("VLMRequest",),
            defines_new_attribute=True,
            supports=True,
        ),
    ),
)
