"""A broken version of ``server-chunked-hit``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.server.server_chunked_hit import patch as server_chunked_hit


def hits_that_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_chunked_hit, "lacks", lambda cache, held: False)


MUTANTS = {"server-chunked-hit": hits_that_lack_nothing}
