"""A broken version of ``vllm-billing-header``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.vllm_mlx.vllm_billing_header import patch as billing_header

from .mutants import replaced

MUTANTS = {"vllm-billing-header": replaced(billing_header, without_line=lambda system: system)}
