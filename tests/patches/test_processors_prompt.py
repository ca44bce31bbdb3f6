"""A broken version of ``processors-prompt``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.generation.processors_prompt import patch as processors_prompt

from .mutants import replaced

MUTANTS = {
    "processors-prompt": replaced(processors_prompt, unseen=lambda prompt, tokens: prompt[:0])
}
