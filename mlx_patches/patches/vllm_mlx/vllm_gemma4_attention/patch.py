"""vllm-mlx --mllm with Gemma 4: crashes or wrong rows in a batch.

Why: Before its first multimodal batch, vllm-mlx replaces Gemma 4's ``Attention.__call__`` with a
    copy of mlx-vlm 0.4.3's that has one fix. In the copy, layers that share another layer's keys
    and values still have wrong RoPE positions. From mlx-vlm 0.5.0 on, the caller passes
    ``shared_kv`` and ``offset``, which the copy does not accept: every request fails.
How: The host's function does nothing, and reports that the attention is replaced. The patches for
    Gemma 4 repair mlx-vlm's own attention.
Upstream: vllm-mlx 0.4.0 copies the attention of mlx-vlm 0.5.0.
Retire when: vllm-mlx below 0.4.0 is no longer supported.
"""

from typing import Any

from ....core.verbs import Patch, wrap


def keep_attention(replace: Any) -> bool:
    """Keep mlx-vlm's own attention, and return True as if it was replaced."""
    return True


PATCH = Patch(
    id="vllm-gemma4-attention",
    targets=wrap(
        "vllm_mlx.patches.gemma4_mllm:patch_gemma4_attention_for_batching", keep_attention
    ),
)
