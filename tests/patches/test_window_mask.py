"""A broken version of ``window-mask``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.masks.window_mask import patch as window_mask

from .mutants import replaced

MUTANTS = {"window-mask": replaced(window_mask, is_past_window=lambda tokens, window_size: False)}
