"""A broken version of ``vllm-gemma4-reasoning``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_gemma4_reasoning import patch as gemma4_reasoning

from .mutants import replaced

MUTANTS = {"vllm-gemma4-reasoning": replaced(gemma4_reasoning, split=lambda text: ("", text))}
