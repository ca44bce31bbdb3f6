"""Makes the mask of a decode step over a quantized batch with padding."""

from ....probes.kit import Result, Target, import_module, mx, require
from ....probes.quantized_batches import Kind, feed

PADDING = [3, 0, 1]
TOKENS = 6


def probe(target: Target) -> Result:
    """Red if the mask is no array, or lets a row attend to padding."""
    create = require(target)
    caches = import_module("mlx_vlm.models.cache")
    cache = Kind(caches.BatchQuantizedKVCache).batch(PADDING)
    rows = range(len(PADDING))
    feed(cache, [(row, 0) for row in rows], TOKENS)
    mask = create(mx.zeros((len(PADDING), 1, 8)), cache)
    if not isinstance(mask, mx.array):
        return Result(True, f"the mask of a padded batch is {mask!r}")
    feed(cache, [(row, 0) for row in rows], 1)
    seen = mx.broadcast_to(mask, (len(PADDING), 1, 1, TOKENS + 1))[:, 0, 0].tolist()
    wrong = [row for row in rows if seen[row] != [PADDING[row] <= k for k in range(TOKENS + 1)]]
    if wrong:
        return Result(True, f"row {wrong[0]} with {PADDING[wrong[0]]} of padding sees other tokens")
    return Result(False, "every row sees its own tokens")
