"""vllm-mlx exchanges Gemma 4's attention for its own copy, which is not what mlx-vlm calls.

Why
    Before its first multimodal batch vllm-mlx replaces the whole of Gemma 4's
    ``Attention.__call__`` by a copy of mlx-vlm 0.4.3's with one repair. Layers that share
    another's keys and values are still rotated to the wrong positions in it, and from mlx-vlm
    0.5.0 on the caller passes ``shared_kv`` and ``offset``, which it does not take: every
    request fails.
How
    The host finds its work done, by the mark that it sets itself. What mlx-vlm's own attention
    lacks, the patches of Gemma 4's row repair.
Upstream
    vllm-mlx 0.4.0 copies mlx-vlm 0.5.0's.
Retire when
    vllm-mlx below 0.4.0 is no longer supported.
"""

from __future__ import annotations

from typing import Any

from ...core.patch import Patch, Target, around


def left_alone(replace: Any) -> bool:
    """Nothing: mlx-vlm's own attention stays, and counts as replaced."""
    return True


PATCH = Patch(
    id="vllm-gemma4-attention",
    summary="the host exchanges Gemma 4's attention for a stale copy: errors, or wrong rows",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.patches.gemma4_mllm",
            "patch_gemma4_attention_for_batching",
            around(lambda replace: left_alone(replace)),
        ),
    ),
    probe="mlx_patches.probes.gemma4_attention:probe",
    module=__name__,
)
