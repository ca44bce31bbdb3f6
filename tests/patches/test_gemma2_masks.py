"""A broken version of ``gemma2-masks``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.masks.gemma2_masks import patch as gemma2_masks

from .mutants import recoded

MUTANTS = {"gemma2-masks": recoded(gemma2_masks, add_group_axis=lambda attention, /, mask: mask)}
