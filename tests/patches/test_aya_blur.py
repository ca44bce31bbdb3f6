"""A broken version of ``aya-blur``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.aya_blur import patch as aya_blur


def a_kernel_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aya_blur, "kernel", lambda radius, sigma: [0] * radius + [1] + [0] * radius)


MUTANTS = {"aya-blur": a_kernel_of_one}
