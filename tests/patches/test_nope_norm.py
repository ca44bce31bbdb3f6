"""A broken version of ``nope-norm``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.models.nope_norm import patch as nope_norm

from .mutants import recoded

MUTANTS = {"nope-norm": recoded(nope_norm, disable_norm_without_rope=lambda attention, /: None)}
