"""A broken version of ``speculative-window``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.generation.speculative_window import patch as speculative_window

from .mutants import replaced

MUTANTS = {"speculative-window": replaced(speculative_window, count_trimmable=lambda layer: 0)}
