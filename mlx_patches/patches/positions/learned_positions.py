"""GPT-BigCode dies in every batch: it makes its positions from one number.

Why
    The model adds learned position embeddings for ``np.arange(offset, offset + L)``. A batch's
    cache has an offset for each row, which NumPy cannot take for a number.
How
    For such a cache the model is called with an embedding that already knows each row's own
    positions, and with a first cache whose offset is a number that goes unused.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The model takes offsets by row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around


def modelled(
    call: Callable[..., Any], model: Any, inputs: Any, cache: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """The decoder's output for token ids of shape (rows, length)."""
    offset = cache[0].offset if cache and cache[0] is not None else 0
    if not getattr(offset, "ndim", 0):
        return call(model, inputs, cache, *args, **kwargs)
    placed = copy.copy(model)
    placed.wpe = Placed(model.wpe, positions(offset, inputs.shape[1]))
    return call(placed, inputs, numbered(cache), *args, **kwargs)


def positions(offset: Any, length: int) -> Any:
    """The positions (rows, length) of the next tokens."""
    import mlx.core as mx

    # A row's padding has no position; its embedding is not looked at.
    return mx.maximum(offset[:, None] + mx.arange(length), 0)


class Placed:
    """Position embeddings of known positions, whatever is asked for."""

    def __init__(self, embedding: Callable[[Any], Any], positions: Any):
        self.embedding, self.positions = embedding, positions

    def __call__(self, _: Any) -> Any:
        """Return the embeddings (rows, length, width)."""
        return self.embedding(self.positions)


class Numbered:
    """A cache, but for its offset."""

    offset = 0

    def __init__(self, cache: Any):
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def numbered(cache: Sequence[Any]) -> list[Any]:
    """The caches, the first with a number for its offset."""
    return [Numbered(cache[0]), *cache[1:]]


PATCH = Patch(
    id="learned-positions",
    summary="GPT-BigCode dies in every batch: it takes the rows' offsets for one number",
    targets=(
        Target("mlx-lm", "mlx_lm.models.gpt_bigcode", "GPTBigCodeModel.__call__", around(modelled)),
        Target(
            "mlx-vlm",
            "mlx_vlm.models.gpt_bigcode.language",
            "GPTBigCodeModel.__call__",
            around(modelled),
        ),
    ),
    probe="mlx_patches.probes.model_batch:probe",
    module=__name__,
)
