"""vllm-mlx --mllm, simple engine: a streamed answer about a known image is wrong, or an error.

Why: The engine keeps the keys and values of a prompt with images. A streamed chat with the same
    prompt and images gets them, and computes the whole prompt again after them. An answer that is
    not streamed leaves the keys and values to mlx-vlm.
How: So does a streamed answer: it gets the engine's own option for it.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: A streamed chat computes only what is not kept.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap


def compute_whole(stream: Function, *args: Any, **options: Any) -> Any:
    """A streamed answer of which the engine looks up nothing."""
    return stream(*args, **options | {"use_cache": False})


PATCH = Patch(
    id="vllm-image-cache",
    targets=wrap("vllm_mlx.models.mllm:MLXMultimodalLM.stream_chat", compute_whole),
)
