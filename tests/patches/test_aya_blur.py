"""A broken version of ``aya-blur``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.models.aya_blur import patch as aya_blur

from .mutants import replaced

MUTANTS = {
    "aya-blur": replaced(aya_blur, kernel=lambda radius, sigma: [0] * radius + [1] + [0] * radius)
}
