"""A broken version of ``mllama-text``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.mllama_text import patch as mllama_text


def layers_that_need_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mllama_text, "has_image", lambda states, cache: True)


MUTANTS = {"mllama-text": layers_that_need_no_image}
