"""A broken version of ``vllm-gemma4-reasoning``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_gemma4_reasoning import patch as gemma4_reasoning


def thoughts_that_are_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4_reasoning, "split", lambda text: ("", text))


MUTANTS = {"vllm-gemma4-reasoning": thoughts_that_are_content}
