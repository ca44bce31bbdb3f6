"""A broken version of ``concatenate-trim``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.caches.concatenate_trim import patch as concatenate_trim

from .mutants import replaced

MUTANTS = {
    "concatenate-trim": replaced(concatenate_trim, cut_columns=lambda columns, cache: columns)
}
