"""A broken version of ``long-rope``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.long_rope import patch as long_rope


def rows_that_are_long_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        long_rope, "is_long", lambda ends, limit: (ends > limit) | (ends.max() > limit)
    )


MUTANTS = {"long-rope": rows_that_are_long_together}
