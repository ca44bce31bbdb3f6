"""A broken version of ``vllm-stop-tokens``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_stop_tokens import patch as stop_tokens

from .mutants import replaced

MUTANTS = {"vllm-stop-tokens": replaced(stop_tokens, folder_of=lambda processor: None)}
