"""A broken version of ``sinks-warning``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.generation.sinks_warning import patch as sinks_warning


def a_window_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_warning, "warn", lambda size: None)


MUTANTS = {"sinks-warning": a_window_without_a_word}
