"""A broken version of ``indexer-rope``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.indexer_rope import patch as indexer_rope


def indexers_that_rotate_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_rope, "rotates_halves", lambda args: False)


MUTANTS = {"indexer-rope": indexers_that_rotate_pairs}
