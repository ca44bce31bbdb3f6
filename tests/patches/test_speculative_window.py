"""A broken version of ``speculative-window``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.generation.speculative_window import patch as speculative_window


def windows_with_nothing_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_window, "count_trimmable", lambda layer: 0)


MUTANTS = {"speculative-window": windows_with_nothing_to_spare}
