"""A broken version of ``nope-norm``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.nope_norm import patch as nope_norm


def layers_that_all_normalize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nope_norm, "lacks_rope", lambda attention: False)


MUTANTS = {"nope-norm": layers_that_all_normalize}
