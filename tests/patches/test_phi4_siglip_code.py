"""A broken version of ``phi4-siglip-code``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.loading.phi4_siglip_code import patch as phi4_siglip_code


def code_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phi4_siglip_code, "distrusting", lambda arguments: arguments)


MUTANTS = {"phi4-siglip-code": code_that_is_trusted}
