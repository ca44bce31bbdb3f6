"""A broken version of ``vllm-loaded-model``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_loaded_model import patch as loaded_model


def models_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_model, "again", lambda name, config: None)


MUTANTS = {"vllm-loaded-model": models_that_are_lost}
