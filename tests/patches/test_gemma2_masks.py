"""A broken version of ``gemma2-masks``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.masks.gemma2_masks import patch as gemma2_masks


def masks_of_four_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma2_masks, "by_group", lambda mask: mask)


MUTANTS = {"gemma2-masks": masks_of_four_axes}
