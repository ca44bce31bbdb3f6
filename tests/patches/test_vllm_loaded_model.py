"""A broken version of ``vllm-loaded-model``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_loaded_model import patch as loaded_model

from .mutants import replaced

MUTANTS = {"vllm-loaded-model": replaced(loaded_model, again=lambda name, config: None)}
