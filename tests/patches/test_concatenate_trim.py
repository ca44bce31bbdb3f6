"""A broken version of ``concatenate-trim``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.caches.concatenate_trim import patch as concatenate_trim


def columns_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concatenate_trim, "cut_columns", lambda columns, cache: columns)


MUTANTS = {"concatenate-trim": columns_that_stay}
