"""A broken version of ``request-models``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.server.request_models import patch as request_models


def models_that_anybody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_models, "is_allowed", lambda name, started: True)


MUTANTS = {"request-models": models_that_anybody_names}
