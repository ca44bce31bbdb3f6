"""A broken version of ``nope-norm``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.models.nope_norm import patch as nope_norm

from .mutants import replaced

MUTANTS = {"nope-norm": replaced(nope_norm, lacks_rope=lambda attention: False)}
