"""A broken version of ``vllm-stop-tokens``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_stop_tokens import patch as stop_tokens


def folders_that_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_tokens, "folder_of", lambda processor: None)


MUTANTS = {"vllm-stop-tokens": folders_that_are_nowhere}
