"""A broken version of ``window-mask``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.masks.window_mask import patch as window_mask


def windows_that_nothing_outgrows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_mask, "outgrown", lambda tokens, window_size: False)


MUTANTS = {"window-mask": windows_that_nothing_outgrows}
