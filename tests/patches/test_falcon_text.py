"""A broken version of ``falcon-text``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.models.falcon_text import patch as falcon_text

from .mutants import replaced

MUTANTS = {"falcon-text": replaced(falcon_text, needs_mask=lambda shape: False)}
