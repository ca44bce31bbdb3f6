"""A broken version of ``shared-layer-offset``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.shared_layer_offset import patch as shared_layer_offset


def offsets_after_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_layer_offset, "before", lambda cache, tokens: cache)


MUTANTS = {"shared-layer-offset": offsets_after_the_update}
