"""A broken version of ``concatenate-trim``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.caches.concatenate_trim import patch as concatenate_trim

from .mutants import recoded

MUTANTS = {
    "concatenate-trim": recoded(concatenate_trim, drop_trimmed_columns=lambda cache, /: None)
}
