"""A broken version of ``nested-rope``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.loading.nested_rope import patch as nested_rope


def names_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_rope, "old_names", lambda nested, params, known: {})


MUTANTS = {"nested-rope": names_that_are_not_read}
