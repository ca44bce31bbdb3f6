"""vllm-mlx: after the first prefix-cache hit the server blocks, and may garble answers.

Why: A request is looked up in the prefix cache on the event loop's thread, which cuts a hit to the
    shared prefix but does not evaluate it. MLX evaluates an array on the thread that made it, so
    the generation thread raises "There is no Stream(gpu, 0) in current thread". From then on the
    host runs its steps on the event loop: the server answers no request while it processes a
    prompt, and two threads use the same arrays. About one start in twenty then gives wrong answers
    or crashes.
How: The caches of a hit, which are views, are evaluated on the thread that made them.
Upstream: vllm-mlx 0.6.0 looks requests up on the generation thread (vllm-mlx 407 496 565).
Retire when: vllm-mlx below 0.6.0 is no longer supported.
"""

from typing import Any

from ....core.verbs import Patch, result
from .stored import evaluate


def evaluate_hit(hit: Any) -> Any:
    """The caches of a prefix, evaluated, and the tokens that are left to feed; or a miss."""
    evaluate(hit[0] or ())
    return hit


PATCH = Patch(
    id="vllm-fetched-prefix",
    targets=result(
        "vllm_mlx.memory_cache:MemoryAwarePrefixCache.fetch",
        evaluate_hit,
        fingerprint_of=("MemoryAwarePrefixCache.fetch", "_trim_cache_offset"),
    ),
    probe=".probe_fetched:probe",
)
