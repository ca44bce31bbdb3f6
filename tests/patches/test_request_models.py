"""A broken version of ``request-models``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.server.request_models import patch as request_models

from .mutants import replaced

MUTANTS = {"request-models": replaced(request_models, is_allowed=lambda name, started: True)}
