"""A broken version of ``plamo3-window``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.masks.plamo3_window import patch as plamo3_window

from .mutants import recoded

MUTANTS = {"plamo3-window": recoded(plamo3_window, widen_windows=lambda caches, model, /: caches)}
