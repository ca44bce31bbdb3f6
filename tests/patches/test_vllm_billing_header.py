"""A broken version of ``vllm-billing-header``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_billing_header import patch as billing_header


def lines_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_header, "without_line", lambda system: system)


MUTANTS = {"vllm-billing-header": lines_that_stay}
