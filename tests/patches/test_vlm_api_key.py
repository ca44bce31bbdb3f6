"""A broken version of ``vlm-api-key``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.server.vlm_api_key import patch as api_key

from .mutants import replaced

MUTANTS = {"vlm-api-key": replaced(api_key, asks=lambda app: True)}
