"""A broken version of ``server-chunked-hit``: with it the probe must be red."""

from __future__ import annotations

from mlx_patches.patches.server.server_chunked_hit import patch as server_chunked_hit

from .mutants import replaced

MUTANTS = {"server-chunked-hit": replaced(server_chunked_hit, lacks=lambda cache, held: False)}
