"""Broken versions of the patches of published checkpoints: with each its probe must be red."""

from __future__ import annotations

import re

import pytest

from mlx_patches.patches.loading.checkpoint_layout import patch as checkpoint_layout


def factors_that_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_layout, "factors_of", lambda args: {})


def experts_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_layout, "_STACKED", re.compile("nothing"))


MUTANTS = {"falcon-h1-factors": factors_that_are_one, "gpt-oss-experts": experts_as_they_come}
