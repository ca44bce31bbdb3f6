"""A broken version of ``xtc-rows``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.generation.xtc_rows import patch as xtc_rows

from .mutants import replaced

MUTANTS = {"xtc-rows": replaced(xtc_rows, several=lambda logits: False)}
