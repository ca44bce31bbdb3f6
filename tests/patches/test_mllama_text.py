"""A broken version of ``mllama-text``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.models.mllama_text import patch as mllama_text

from .mutants import replaced

MUTANTS = {"mllama-text": replaced(mllama_text, has_image=lambda states, cache: True)}
