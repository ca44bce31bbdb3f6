"""vllm-mlx's first prefix hit moves generation to the thread that answers HTTP.

Why
    A request is looked up in the prefix cache on the event loop's thread, where a hit is cut to
    the shared prefix but not evaluated. MLX evaluates an array on the thread that made it, so the
    generation thread raises "There is no Stream(gpu, 0) in current thread". From then on the host
    runs its steps on the event loop: no request is answered while a prompt is processed, and two
    threads use the same arrays. About one start in twenty then produces wrong answers, or crashes.
How
    The caches of a hit, which are views, are evaluated on the thread that made them.
Upstream
    vllm-mlx 0.6.0 looks requests up on the generation thread (vllm-mlx 407 496 565).
Retire when
    vllm-mlx below 0.6.0 is no longer supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from .stored import evaluate


def fetch_evaluated(fetch: Any, prefixes: Any, tokens: Sequence[int]) -> Any:
    """The caches of a prefix, evaluated, and the tokens that are left to feed; or a miss."""
    found, rest = fetch(prefixes, tokens)
    evaluate(found or ())
    return found, rest


PATCH = Patch(
    id="vllm-fetched-prefix",
    every_model=True,
    summary="vllm-mlx: after the first prefix-cache hit the server blocks, and may garble answers",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.memory_cache",
            "MemoryAwarePrefixCache.fetch",
            around(fetch_evaluated),
            fingerprint_of=("MemoryAwarePrefixCache.fetch", "_trim_cache_offset"),
        ),
    ),
    probe=".probe_fetched:probe",
)
