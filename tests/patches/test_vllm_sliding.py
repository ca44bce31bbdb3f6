"""Broken versions of two patches: with them the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_sliding import offset as sliding_offset
from mlx_patches.patches.vllm_mlx.vllm_sliding import vlm as sliding_vlm

from .mutants import replaced

MUTANTS = {
    "vllm-sliding-vlm": replaced(sliding_vlm, as_kv_caches=list),
    "vllm-sliding-offset": replaced(sliding_offset, is_full=lambda layer: False),
}
