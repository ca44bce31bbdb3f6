"""mlx_vlm.server returns the same sample for every request without a seed.

Why: A request without a seed is sampled with seed 0, and each draw depends only on the seed and the
    token's position. The same prompt then gets the same answer at any temperature, in every retry
    and in every row of a batch.
How: A sampler without a seed draws one per request. The ``seed`` of a request that was sent without
    one reads as None; a seed that was sent, even 0, gives the same answer as before.
Upstream: Reported as mlx-vlm #1818. Not fixed in mlx-vlm 0.7.10; mlx-vlm #1844 is open.
Retire when: The server draws a seed for requests without one.
"""

import secrets
from typing import Any

from ....core.patch import Patch, read_stored
from ....core.verbs import argument, convert, support


def draw_seed(seed: int | None) -> int:
    """The given seed; a random one if there is none, of the 32 bits that a sampler reads."""
    return secrets.randbits(32) if seed is None else seed


def read_sent_seed(request: Any) -> int | None:
    """The seed that a request was sent with; None without one, whatever the default."""
    seed = read_stored(request, "seed")
    return seed if "seed" in request.model_fields_set else None


PATCH = Patch(
    id="vlm-fresh-seed",
    severity="feature",
    targets=(
        *argument("mlx_vlm.server.generation:_PositionedTargetSampler.__init__", "seed", draw_seed),
        *support(
            *convert("mlx_vlm.server.schemas:VLMRequest.seed", "VLMRequest", read=read_sent_seed)
        ),
    ),
)
