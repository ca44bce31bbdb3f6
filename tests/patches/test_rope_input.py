"""A broken version of ``rope-input``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.rope_input import patch as rope_input


def arrays_that_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope_input, "make_handle", lambda x: x)


MUTANTS = {"rope-input": arrays_that_are_the_callers}
