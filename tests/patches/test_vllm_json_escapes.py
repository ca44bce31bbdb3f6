"""A broken version of ``vllm-json-escapes``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.vllm_mlx.vllm_json_escapes import patch as json_escapes


def bodies_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_escapes, "escaped", lambda body: body)


MUTANTS = {"vllm-json-escapes": bodies_as_they_come}
