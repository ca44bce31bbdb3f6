"""Broken versions of the patches of published checkpoints: with each its probe must be red."""

from __future__ import annotations

import re

from mlx_patches.patches.loading.checkpoint_layout import patch as checkpoint_layout

from .mutants import replaced

MUTANTS = {
    "falcon-h1-factors": replaced(checkpoint_layout, find_factors=lambda args: {}),
    "gpt-oss-experts": replaced(checkpoint_layout, _STACKED=re.compile("nothing")),
}
