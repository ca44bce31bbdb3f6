"""A broken version of ``glm-rotary``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.positions.glm_rotary import patch as glm_rotary

from .mutants import replaced

MUTANTS = {"glm-rotary": replaced(glm_rotary, factor_of=lambda params: 1.0)}
