"""A broken version of ``speculative-split``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.generation.speculative_split import patch as speculative_split


def as_many_caches_as_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_split, "caches_of", lambda model: len(model.layers))


MUTANTS = {"speculative-split": as_many_caches_as_layers}
