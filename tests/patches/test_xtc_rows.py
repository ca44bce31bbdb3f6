"""A broken version of ``xtc-rows``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.core import verbs

from .mutants import recoded

MUTANTS = {"xtc-rows": recoded(verbs, has_several_rows=lambda rows, /: False)}
