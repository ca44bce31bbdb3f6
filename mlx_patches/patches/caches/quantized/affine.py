"""``QuantizedKVCache`` and its batch class: caches of packed values with scales and biases."""

import sys
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, add, argument, define, in_caches, mx, wrap
from ..._shared import quantized as contract
from ..._shared.quantized import CLASS
from ..._shared.rows import make_solo


def extract(cache: Any, idx: int) -> Any:
    return contract.extract(cache, idx, make_solo(cache))


_BATCH = f"mlx_vlm.models.cache:{CLASS}"

BATCH_QUANTIZED = Patch(
    id="batch-quantized",
    severity="crash",
    every_model=True,
    targets=(
        *contract.make_targets(
            _BATCH,
            {
                "prepare": contract.prepare,
                "finalize": contract.finalize,
                "extract": extract,
                "size": contract.size,
                "nbytes": property(contract.nbytes),
            },
        ),
        *wrap(f"{_BATCH}.extend", contract.extend, fingerprint_of=(f"{CLASS}.extend",)),
        *define(
            f"{_BATCH}._right_padding",
            lambda original: contract.NO_PADDING,
            fingerprint_of=tuple(
                f"{CLASS}.{name}" for name in ("__init__", "state", "meta_state", "finalize")
            ),
            defines_new_attribute=True,
        ),
    ),
    doc="""mlx-vlm with kv_bits: a batch crashes on right-padded prompts, or when a row leaves.

    Why: ``BatchQuantizedKVCache`` has no ``prepare``, ``finalize`` and ``extract`` in its first
        releases, and implements ``size`` and ``nbytes`` in none: right padding is not moved, a row
        cannot be extracted, and ``size()`` is always 0. ``from_state`` does not set
        ``_right_padding``, so ``finalize`` of a restored cache raises ``AttributeError``.
        ``extend`` drops one batch's rows if the other is empty, and fails on buffers of different
        sizes.
    How: The missing methods are added, with the contract of ``BatchKVCache``; ``finalize`` moves
        rows inside the buffer, whose end stays. An empty batch gets keys and values of zero tokens
        before ``extend`` joins it with a written one. ``merge`` is added to the solo class instead
        (see ``quantized-merge``): with a ``merge`` on the batch class, Qwen3.5 would run padded
        rows one by one and merge them without their quantization settings.
    Upstream: mlx-vlm 0.6.0 repairs ``extend``, 0.6.5 adds ``prepare``, ``finalize`` and
        ``extract``. Forks with a ``finalize`` cut ``_idx`` to the longest row (seen in omlx).
    Retire when: The class has all of these methods in every supported release.
    """,
)


def merge_from_quantized(cls: Any, caches: Sequence[Any], prefix_lens: Any = None) -> Any | None:
    """Merge solo caches, the first of them quantized, into one batch cache.

    mlx-vlm's prefix cache passes ``prefix_lens`` only after its own attempts to merge the rows
    returned None; this returns None as well.
    """
    module = sys.modules[cls.__module__]
    batch = getattr(module, CLASS, None)
    if batch is None:
        return module.BatchKVCache.merge([dequantize_row(row) for row in caches])
    return contract.merge_quantized(batch, caches) if prefix_lens is None else None


def dequantize_rows(caches: Sequence[Any]) -> Sequence[Any]:
    """Solo caches, those of class ``QuantizedKVCache`` in floats."""
    return [dequantize_row(row) for row in caches] if holds_quantized(caches) else caches


def has_other_classes(cls: Any, /, caches: Sequence[Any]) -> bool:
    """Whether some of these caches are not of class ``cls``, and may be quantized.

    This runs for each layer of each batch of prompts, so it adds no frame per row.
    """
    return set(map(type, caches)) != {cls}


def dequantize_prompts(caches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    return list(map(dequantize_rows, caches)) if any(map(holds_quantized, caches)) else caches


def holds_quantized(caches: Sequence[Any]) -> bool:
    return any(map(find_quantized_class, set(map(type, caches))))


def find_quantized_class(kind: type) -> type | None:
    """The ``QuantizedKVCache`` class that a class is or inherits from; None if it is neither."""
    return next((base for base in kind.__mro__ if base.__name__ == "QuantizedKVCache"), None)


def count_tokens(cache: Any) -> int:
    return int(cache.offset)


def dequantize_row(row: Any) -> Any:
    """A ``QuantizedKVCache`` as a ``KVCache`` in floats; other caches are returned unchanged."""
    quantized = find_quantized_class(type(row))
    if quantized is None:
        return row
    out = sys.modules[quantized.__module__].KVCache()
    if row.keys is not None and row.offset:
        out.keys, out.values = (
            mx.dequantize(*parts, group_size=row.group_size, bits=row.bits)
            for parts in contract.slice_tokens((row.keys, row.values), row.offset)
        )
        out.offset = row.offset
    return out


QUANTIZED_MERGE = Patch(
    id="quantized-merge",
    severity="crash",
    every_model=True,
    targets=(
        *add(
            in_caches("QuantizedKVCache.merge"),
            classmethod(merge_from_quantized),
            "QuantizedKVCache.merge",
            "QuantizedKVCache.update_and_fetch",
            "BatchKVCache.merge",
        ),
        *argument(in_caches("KVCache.merge"), "caches", dequantize_rows, when=has_other_classes),
        *argument("mlx_lm.generate:_merge_caches", "caches", dequantize_prompts),
        *add(
            "mlx_lm.models.cache:QuantizedKVCache.__len__",
            count_tokens,
            "_BaseCache.__len__",
            "QuantizedKVCache.__len__",
        ),
    ),
    probe=".probe_merge:probe",
    doc="""mlx-lm and mlx-vlm: a prompt with a quantized cache crashes when it joins a batch.

    Why: ``QuantizedKVCache`` has no ``merge``. A batch generator that gets one, from a prompt cache
        in a file or from a run with ``kv_bits``, raises "does not yet support batching with
        history"; with rows in floats it fails because the keys are tuples. Up to mlx-lm 0.30.2 its
        ``len()`` is also 0: the generator treats the prompt as new, and silently loses its history.
    How: ``merge`` is added, and ``len()`` if caches have one. mlx-vlm has a quantized batch cache:
        rows with the same settings stay quantized. mlx-lm batches only floats, and a merged batch
        must fit every other batch of the generator: rows are dequantized when they join, and their
        next tokens are stored in floats. A row then continues like a solo run in floats after the
        same prompt, and takes the memory of floats. If rows of both kinds are merged, the first row
        decides.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: Every supported release merges quantized rows.
    """,
)
