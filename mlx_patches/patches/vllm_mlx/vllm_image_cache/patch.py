"""vllm-mlx --mllm, simple engine: a streamed answer about a known image is wrong, or an error.

Why: The engine keeps the keys and values of a prompt with images. A streamed chat with the same
    prompt and images gets them, and computes the whole prompt again after them. An answer that is
    not streamed leaves the keys and values to mlx-vlm.
How: So does a streamed answer: the engine finds no kept keys and values.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: A streamed chat computes only what is not kept.
"""

from ....core.verbs import Patch, result


def find_nothing(found: tuple[list[object] | None, bool]) -> tuple[list[object] | None, bool]:
    """What the engine finds for a prompt that it does not know."""
    return None, False


PATCH = Patch(
    id="vllm-image-cache",
    targets=result("vllm_mlx.mllm_cache:MLLMPrefixCacheManager.fetch_cache", find_nothing),
)
