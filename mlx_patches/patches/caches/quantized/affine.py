"""``QuantizedKVCache`` and its batch class: caches of packed values with scales and biases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Attribute, Patch, Target, around
from ..._shared import quantized as contract
from ..._shared.quantized import CLASS
from ..._shared.rows import make_solo
from ..._shared.targets import CACHES, VLM_CACHES, at

# -- a batch of quantized rows ---------------------------------------------------------------


def extract(cache: Any, idx: int) -> Any:
    """Extract one row as a ``QuantizedKVCache``."""
    return contract.extract(cache, idx, make_solo(cache))


BATCH_QUANTIZED = Patch(
    id="batch-quantized",
    severity="crash",
    every_model=True,
    summary="mlx-vlm with kv_bits: a batch crashes on right-padded prompts, or when a row leaves",
    targets=(
        *contract.added(
            VLM_CACHES,
            CLASS,
            {
                "prepare": lambda original: contract.prepare,
                "finalize": lambda original: contract.finalize,
                "extract": lambda original: extract,
                "size": lambda original: contract.size,
                "nbytes": lambda original: property(contract.nbytes),
            },
        ),
        Target(*VLM_CACHES, f"{CLASS}.extend", around(contract.extend), (f"{CLASS}.extend",)),
        Target(
            *VLM_CACHES,
            f"{CLASS}._right_padding",
            lambda original: Attribute("_right_padding", contract.read_right_padding),
            tuple(f"{CLASS}.{name}" for name in ("__init__", "state", "meta_state", "finalize")),
            defines_new_attribute=True,
        ),
    ),
    doc="""A quantized batch cache lacks methods that engines and hosts call on every batch cache.

    Why
        ``BatchQuantizedKVCache`` has no ``prepare``, ``finalize`` and ``extract`` in its first
        releases, and no ``size`` and ``nbytes`` of its own in any: right-padded prompts stay
        where they are, a row cannot be extracted, and ``size()`` is always 0. ``from_state`` does
        not set ``_right_padding``, so ``finalize`` of a restored cache raises
        ``AttributeError``. ``extend`` keeps only one batch's rows where the other is empty, and
        fails on buffers of different sizes.
    How
        The missing methods are added, with the contract of ``BatchKVCache``; ``finalize`` moves
        rows inside the buffer, whose end does not move. An empty batch gets keys and values of
        no tokens before ``extend`` joins it with a written one. ``merge`` is added to the solo
        class instead (see ``quantized-merge``): if the batch class had it, Qwen3.5 would run
        padded rows one by one and merge them without their quantization settings.
    Upstream
        mlx-vlm 0.6.0 repairs ``extend``, 0.6.5 adds ``prepare``, ``finalize`` and ``extract``.
        Forks that add ``finalize`` cut ``_idx`` to the longest row (seen in omlx).
    Retire when
        The class has all of these methods in every supported release.
    """,
)


# -- rows that join a batch ------------------------------------------------------------------


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


def merge_from_floats(
    original: Callable[..., Any], cls: Any, caches: Sequence[Any], *rest: Any
) -> Any:
    """Merge solo caches, the first of them in floats, into one batch cache."""
    if holds_quantized(caches):
        caches = [dequantize_row(row) for row in caches]
    return original(cls, caches, *rest)


def merges_quantized(cls: Any, caches: Sequence[Any], *rest: Any) -> bool:
    """Whether a call of ``merge`` may join a row whose cache is a ``QuantizedKVCache``.

    This runs for each layer of each batch of prompts, so it adds no frame for a row.
    """
    return set(map(type, caches)) != {cls}


def merge_prompts(original: Callable[..., Any], prompts: Sequence[Sequence[Any]]) -> Any:
    """Merge the caches of several prompts into one batch cache for each layer."""
    if any(map(holds_quantized, prompts)):
        prompts = [[dequantize_row(layer) for layer in prompt] for prompt in prompts]
    return original(prompts)


def holds_quantized(caches: Sequence[Any]) -> bool:
    """Whether any of these caches is a ``QuantizedKVCache``."""
    return any(map(find_quantized_class, set(map(type, caches))))


def find_quantized_class(kind: type) -> type | None:
    """The ``QuantizedKVCache`` class that a class is or inherits from; None if it is neither."""
    return next((base for base in kind.__mro__ if base.__name__ == "QuantizedKVCache"), None)


def count_tokens(cache: Any) -> int:
    """The number of tokens that a quantized solo cache holds."""
    return int(cache.offset)


def dequantize_row(row: Any) -> Any:
    """A ``QuantizedKVCache`` as a ``KVCache`` in floats; any other cache is returned unchanged."""
    import mlx.core as mx

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
    summary="mlx-lm and mlx-vlm: a prompt with a quantized cache crashes when it joins a batch",
    targets=(
        *at(
            CACHES,
            {"QuantizedKVCache.merge": lambda original: classmethod(merge_from_quantized)},
            fingerprint_of=(
                "QuantizedKVCache.merge",
                "QuantizedKVCache.update_and_fetch",
                "BatchKVCache.merge",
            ),
            defines_new_attribute=True,
        ),
        *at(CACHES, {"KVCache.merge": around(merge_from_floats)}, when=merges_quantized),
        Target("mlx-lm", "mlx_lm.generate", "_merge_caches", around(merge_prompts)),
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            "QuantizedKVCache.__len__",
            lambda original: count_tokens,
            fingerprint_of=("_BaseCache.__len__", "QuantizedKVCache.__len__"),
            defines_new_attribute=True,
        ),
    ),
    probe=".probe_merge:probe",
    doc="""A prompt with a quantized cache cannot join a batch.

    Why
        ``QuantizedKVCache`` has no ``merge``. A batch generator that gets one, from a prompt
        cache in a file or from a run with ``kv_bits``, raises "does not yet support batching
        with history"; beside rows in floats it fails because the keys are tuples. Up to mlx-lm
        0.30.2 its ``len()`` is also 0: the generator treats the prompt as new, and silently
        loses its history.
    How
        ``merge`` is added, and ``len()`` where caches have one. mlx-vlm has a quantized batch
        cache: rows with the same settings stay quantized. mlx-lm batches floats only, and a
        merged batch must fit every other batch of the generator: rows are dequantized when they
        join, and their next tokens are stored in floats. A row then continues as it would alone
        in floats after the same prompt, and takes the memory of floats. In a mix of both kinds,
        the first row decides.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        Every supported release merges quantized rows itself.
    """,
)
