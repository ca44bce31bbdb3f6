"""A broken version of ``spare-tensors``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.loading.spare_tensors import patch as spare_tensors


def tensors_that_are_all_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_tensors, "is_spare", lambda model, name: False)


MUTANTS = {"spare-tensors": tensors_that_are_all_needed}
