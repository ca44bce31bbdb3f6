"""Llama 4, Ministral 3 and Qwen4 Exp crash in a batch on old releases; now refused clearly.

Why: Engines refuse models whose caches cannot be batched. The caches of these models can, but the
    models still assume a single sequence: Llama 4 and Qwen4 Exp call methods of their own caches
    that a batch cache lacks, and Ministral 3 passes ``cache.offset`` to ``range``. Requests fail
    with an AttributeError or a TypeError that names no remedy. mlx-vlm's engine crashes for Llama
    4: it looks up a cache class that the release does not have.
How: The model refuses a cache with one offset per row before its first layer runs, with a one-line
    reason and the remedy. mlx-vlm's engine refuses chunked caches. Single requests are unchanged.
Upstream: mlx-lm 0.29.1 batches Ministral 3; the engine of 0.30.4 refuses Llama 4. mlx-vlm 0.4.1
    batches Llama 4; 0.7.0 batches Qwen4 Exp, which was added in 0.6.17.
Retire when: Each supported release of mlx-lm and mlx-vlm batches these models or refuses to.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ....core.verbs import Patch, Target, argument, refusal, wrap
from ..._shared.row_caches import counts_rows

SOLO = "send one request at a time"


def refuse_batches(place: str, remedy: str = SOLO, method: str = "") -> tuple[Target, ...]:
    """Targets that refuse batch caches, and a row's caches, which lack ``method``."""
    package, _, family = place.split(".")[:3]
    family = family.partition(":")[0]

    def refuse_batch(cache: Any) -> Any:
        if is_batch(cache or (), method):
            raise make_refusal(family, package.replace("_", "-"), remedy)
        return cache

    return argument(place, "cache", refuse_batch)


def make_refusal(family: str, distribution: str, remedy: str) -> Exception:
    where = f"this release of {distribution}"
    return refusal(ValueError(f"a batch of {family} is not supported by {where}: {remedy}"))


def is_batch(cache: Sequence[Any], method: str = "") -> bool:
    """Whether caches have one offset per row, or lack the method, as a row of a batch does."""
    attention = [layer for layer in cache if hasattr(layer, "update_and_fetch")]
    if method and not all(hasattr(layer, method) for layer in attention):
        return True
    return any(map(counts_rows, attention))


def make_batch(make: Callable[..., list[Any]], model: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Make the caches of a batch, one per layer; refuse a model with chunked caches."""
    own = getattr(model, "make_cache", None)
    if own is not None and any(map(is_chunked, own())):
        raise make_refusal("llama4", "mlx-vlm", f"install mlx-vlm 0.4.1 or later, or {SOLO}")
    return make(model, *args, **kwargs)


def is_chunked(layer: Any) -> bool:
    return type(layer).__name__ == "ChunkedKVCache"


PATCH = Patch(
    id="batch-refused",
    severity="crash",
    targets=(
        *refuse_batches("mlx_lm.models.llama4:LlamaModel.__call__"),
        *refuse_batches(
            "mlx_lm.models.ministral3:LanguageModel.__call__",
            f"install mlx-lm 0.29.1 or later, or {SOLO}",
        ),
        *refuse_batches(
            "mlx_vlm.models.qwen4_exp.language:Qwen4ExpModel.__call__",
            f"install mlx-vlm 0.7.0 or later, or {SOLO}",
            "update_indexer",
        ),
        *wrap("mlx_vlm.generate:_make_cache", make_batch),
    ),
)
