"""A prompt with a quantized cache cannot join a batch.

Why
    ``QuantizedKVCache`` has no ``merge``. A batch generator that gets one, from a prompt cache
    in a file or from a run with ``kv_bits``, raises "does not yet support batching with
    history"; beside rows in floats it dies on the tuples that it finds as keys. Up to mlx-lm
    0.30.2 its ``len()`` is 0 besides: the generator takes the prompt for a new one, and the
    history is silently lost.
How
    ``merge`` is added, and ``len()`` where caches have one. mlx-vlm has a quantized batch
    cache: rows that are quantized alike stay as they are. mlx-lm batches floats alone, and what
    is merged there has to go on with every other batch of the generator: rows are dequantized
    as they join, their next tokens are kept in floats. That is what the row would be alone in
    floats after the same prompt; its prompt takes the memory of floats from then on. In a mix,
    the kind of the first row decides.
Upstream
    Live in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The release merges quantized rows itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around


def merge(cls: Any, caches: Sequence[Any], prefix_lens: Any = None) -> Any:
    """One batch cache of rows of which the first is quantized."""
    module = sys.modules[cls.__module__]
    batch = getattr(module, "BatchQuantizedKVCache", None)
    if batch is None:
        return module.BatchKVCache.merge([plain(row) for row in caches])
    from . import batch_quantized

    return batch_quantized.merge(batch, caches, prefix_lens)


def merged_plain(original: Callable[..., Any], cls: Any, caches: Sequence[Any], *rest: Any) -> Any:
    """One batch cache of rows of which the first is in floats."""
    return original(cls, [plain(row) for row in caches], *rest)


def merged_all(original: Callable[..., Any], caches: Sequence[Sequence[Any]]) -> Any:
    """One batch cache for each layer of several prompts."""
    return original([[plain(layer) for layer in row] for row in caches])


def length(cache: Any) -> int:
    """How many tokens a quantized row holds."""
    return int(cache.offset)


def plain(row: Any) -> Any:
    """A quantized row as a ``KVCache`` in floats; any other as it is."""
    import mlx.core as mx

    kinds = [kind for kind in type(row).__mro__ if kind.__name__ == "QuantizedKVCache"]
    if not kinds:
        return row
    out = sys.modules[kinds[0].__module__].KVCache()
    if row.keys is not None and row.offset:
        out.keys, out.values = (
            mx.dequantize(
                *(part[..., : row.offset, :] for part in parts),
                group_size=row.group_size,
                bits=row.bits,
            )
            for parts in (row.keys, row.values)
        )
        out.offset = row.offset
    return out


def _targets() -> tuple[Target, ...]:
    classes = [("mlx-lm", "mlx_lm.models.cache"), ("mlx-vlm", "mlx_vlm.models.cache")]
    return (
        *(
            Target(
                distribution,
                module,
                "QuantizedKVCache.merge",
                lambda original: classmethod(merge),
                body=(
                    "QuantizedKVCache.merge",
                    "QuantizedKVCache.update_and_fetch",
                    "BatchKVCache.merge",
                ),
                adds=True,
            )
            for distribution, module in classes
        ),
        *(
            Target(distribution, module, "KVCache.merge", around(merged_plain))
            for distribution, module in classes
        ),
        Target("mlx-lm", "mlx_lm.generate", "_merge_caches", around(merged_all)),
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            "QuantizedKVCache.__len__",
            lambda original: length,
            body=("_BaseCache.__len__", "QuantizedKVCache.__len__"),
            adds=True,
        ),
    )


PATCH = Patch(
    id="quantized-merge",
    summary="a prompt with a quantized cache cannot join a batch",
    targets=_targets(),
    probe="mlx_patches.probes.quantized_merge:probe",
    module=__name__,
)
