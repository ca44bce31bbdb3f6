"""A broken version of ``sinks-warning``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.generation.sinks_warning import patch as sinks_warning

from .mutants import replaced

MUTANTS = {"sinks-warning": replaced(sinks_warning, warn=lambda size: None)}
