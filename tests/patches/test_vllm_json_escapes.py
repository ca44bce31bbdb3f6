"""A broken version of ``vllm-json-escapes``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_json_escapes import patch as json_escapes

from .mutants import replaced

MUTANTS = {"vllm-json-escapes": replaced(json_escapes, escaped=lambda body: body)}
