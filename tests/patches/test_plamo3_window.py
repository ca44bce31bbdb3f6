"""A broken version of ``plamo3-window``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.masks.plamo3_window import patch as plamo3_window


def caches_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plamo3_window, "shown", lambda window_size: window_size)


MUTANTS = {"plamo3-window": caches_of_the_window}
