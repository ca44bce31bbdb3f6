"""A broken version of ``phimoe-routing``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.phimoe_routing import patch as phimoe_routing


def experts_that_are_all_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phimoe_routing, "JITTER", 1000.0)


MUTANTS = {"phimoe-routing": experts_that_are_all_close}
