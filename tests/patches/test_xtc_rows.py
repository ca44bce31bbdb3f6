"""A broken version of ``xtc-rows``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.generation.xtc_rows import patch as xtc_rows


def rows_at_one_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xtc_rows, "several", lambda logits: False)


MUTANTS = {"xtc-rows": rows_at_one_threshold}
