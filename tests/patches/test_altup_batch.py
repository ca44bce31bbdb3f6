"""A broken version of ``altup-batch``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.altup_batch import patch as altup_batch


def rows_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(altup_batch, "one_row", lambda states: states)


MUTANTS = {"altup-batch": rows_as_they_come}
