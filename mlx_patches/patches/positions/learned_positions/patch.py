"""GPT-BigCode crashes in every batch.

Why: The model adds learned position embeddings for ``np.arange(offset, offset + L)``. A batch cache
    has an array with one offset per row, which NumPy cannot convert to a scalar.
How: With such a cache the model counts from 0, and its position embedding adds each row's offset.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: The model accepts one offset per row in every supported release.
"""

import copy
from typing import Any

from ....core.verbs import Function, Patch, family, mx, wrap
from ..._shared.parts import with_offset


def call_with_positions(
    call: Function, model: Any, inputs: Any, cache: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """The decoder's output for token ids of shape (rows, length)."""
    offset = cache[0].offset if cache and cache[0] is not None else 0
    if not getattr(offset, "ndim", 0):
        return call(model, inputs, cache, *args, **kwargs)
    placed = copy.copy(model)
    placed.wpe = RowPositions(model.wpe, offset)
    # The model counts from the first cache's offset.
    return call(placed, inputs, [with_offset(cache[0], 0), *cache[1:]], *args, **kwargs)


class RowPositions:
    """Position embeddings that count each row from its own offset (rows,)."""

    def __init__(self, embedding: Function, offset: Any):
        self.embedding, self.offset = embedding, offset

    def __call__(self, positions: Any) -> Any:
        """Return the embeddings (rows, length, width) of ``positions`` (length,)."""
        # Padding has no position; its embedding is not used.
        return self.embedding(mx.maximum(self.offset[:, None] + positions, 0))


PATCH = Patch(
    id="learned-positions",
    severity="crash",
    targets=wrap(family("gpt_bigcode", "GPTBigCodeModel.__call__"), call_with_positions),
    probe="mlx_patches.probes.model_batch:probe",
)
