"""A broken version of ``server-empty-prompt``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.server.server_empty_prompt import patch as server_empty_prompt

from .mutants import replaced

MUTANTS = {"server-empty-prompt": replaced(server_empty_prompt, beginning=lambda tokenizer: [])}
