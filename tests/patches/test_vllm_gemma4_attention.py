"""A broken version of ``vllm-gemma4-attention``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_gemma4_attention import patch as gemma4_attention

from .mutants import replaced

MUTANTS = {
    "vllm-gemma4-attention": replaced(gemma4_attention, left_alone=lambda replace: replace())
}
