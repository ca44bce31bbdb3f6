"""A broken version of ``dynamic-rope``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.dynamic_rope import patch as dynamic_rope


def bases_that_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        dynamic_rope, "grown_bases", lambda ends, base, *rest: base * (ends == ends)
    )


MUTANTS = {"dynamic-rope": bases_that_do_not_grow}
