"""A broken version of ``speculative-split``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.generation.speculative_split import patch as speculative_split

from .mutants import replaced

MUTANTS = {
    "speculative-split": replaced(speculative_split, caches_of=lambda model: len(model.layers))
}
