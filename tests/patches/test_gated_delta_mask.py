"""A broken version of ``gated-delta-mask``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.masks.gated_delta_mask import patch as gated_delta_mask

from .mutants import replaced

MUTANTS = {"gated-delta-mask": replaced(gated_delta_mask, is_per_row=lambda mask: False)}
