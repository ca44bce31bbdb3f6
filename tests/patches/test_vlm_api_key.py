"""A broken version of ``vlm-api-key``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.server.vlm_api_key import patch as api_key


def routes_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_key, "asks", lambda app: True)


MUTANTS = {"vlm-api-key": routes_without_a_key}
