"""A broken version of ``vllm-gemma4-attention``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_gemma4_attention import patch as gemma4_attention


def a_copy_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4_attention, "left_alone", lambda replace: replace())


MUTANTS = {"vllm-gemma4-attention": a_copy_all_the_same}
