"""Broken versions of two patches: with them the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_sliding import offset as sliding_offset
from mlx_patches.patches.vllm_mlx.vllm_sliding import vlm as sliding_vlm


def caches_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_vlm, "as_kv_caches", list)


def windows_that_are_never_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_offset, "is_full", lambda layer: False)


MUTANTS = {
    "vllm-sliding-vlm": caches_that_are_refused,
    "vllm-sliding-offset": windows_that_are_never_full,
}
