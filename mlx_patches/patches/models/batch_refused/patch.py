"""A batch of a model that reads one sequence at a time fails deep in the model's code.

Why
    Engines refuse a kind of cache that has no batch. These models have one, or a subclass of one,
    and still read a single sequence: Llama 4 and Qwen4 Exp call methods of their own caches that
    the batch's lacks, Ministral 3 makes a range of ``cache.offset``. The batch is accepted, and
    its requests fail with an AttributeError or a TypeError that tells no remedy. mlx-vlm's engine
    fails so for Llama 4: it looks for a class that the release's module of caches lacks.
How
    The model refuses a cache with an offset for each row, in one sentence and before its first
    layer; mlx-vlm's engine refuses caches of chunks. A request alone is not touched.
Upstream
    mlx-lm 0.29.1 batches Ministral 3; the engine of 0.30.4 refuses Llama 4. mlx-vlm 0.4.1 batches
    Llama 4; 0.7.0 batches Qwen4 Exp, which came in 0.6.17.
Retire when
    Each supported release of mlx-lm and mlx-vlm batches these models or refuses to.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ....core.errors import refusal
from ....core.patch import Factory, Patch, Target, around
from ..._shared.row_caches import counts_rows
from ..._shared.row_calls import bind_call, find_argument

# Why a request fails, and what to do.
_MESSAGE = "a batch of {} is not supported by this release of {}: {}"
ALONE = "send one request at a time"


def refuse_batches(family: str, package: str, remedy: str, method: str) -> Factory:
    """Factory of a model's call, which refuses the caches of a batch, and those of its rows."""

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(call)

        @functools.wraps(call)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            bound = bind_call(signature, args, kwargs)
            if bound is not None and is_batch(find_argument(bound, "cache") or (), method):
                raise refused(family, package, remedy)
            return call(*args, **kwargs)

        return replacement

    return make


def refused(family: str, package: str, remedy: str) -> Exception:
    """The error for the host."""
    return refusal(ValueError(_MESSAGE.format(family, package, remedy)))


def is_batch(cache: Sequence[Any], method: str = "") -> bool:
    """Whether caches have one offset a row, or lack the model's method, as a batch's row does."""
    attention = [layer for layer in cache if hasattr(layer, "update_and_fetch")]
    if method and not all(hasattr(layer, method) for layer in attention):
        return True
    return any(map(counts_rows, attention))


def make_batch(make: Callable[..., list[Any]], model: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """The caches of a batch, one a layer; refuses a model of which layers keep chunks."""
    own = getattr(model, "make_cache", None)
    if own is not None and any(map(keeps_chunks, own())):
        raise refused("llama4", "mlx-vlm", f"install mlx-vlm 0.4.1 or later, or {ALONE}")
    return make(model, *args, **kwargs)


def keeps_chunks(layer: Any) -> bool:
    """Whether a cache keeps chunks."""
    return type(layer).__name__ == "ChunkedKVCache"


def _target(package: str, module: str, kind: str, remedy: str = ALONE, method: str = "") -> Target:
    family = module.split(".")[2]
    factory = refuse_batches(family, package, remedy, method)
    return Target(package, module, f"{kind}.__call__", factory)


PATCH = Patch(
    id="batch-refused",
    severity="crash",
    summary=(
        "Llama 4, Ministral 3 and Qwen4 Exp crash in a batch on old releases; now refused clearly"
    ),
    targets=(
        _target("mlx-lm", "mlx_lm.models.llama4", "LlamaModel"),
        _target(
            "mlx-lm",
            "mlx_lm.models.ministral3",
            "LanguageModel",
            f"install mlx-lm 0.29.1 or later, or {ALONE}",
        ),
        _target(
            "mlx-vlm",
            "mlx_vlm.models.qwen4_exp.language",
            "Qwen4ExpModel",
            f"install mlx-vlm 0.7.0 or later, or {ALONE}",
            method="update_indexer",
        ),
        Target("mlx-vlm", "mlx_vlm.generate", "_make_cache", around(make_batch)),
    ),
)
