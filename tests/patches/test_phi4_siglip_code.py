"""A broken version of ``phi4-siglip-code``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.loading.phi4_siglip_code import patch as phi4_siglip_code

from .mutants import replaced

MUTANTS = {"phi4-siglip-code": replaced(phi4_siglip_code, distrust=lambda arguments: arguments)}
