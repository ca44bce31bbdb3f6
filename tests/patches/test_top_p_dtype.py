"""A broken version of ``top-p-dtype``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.generation.top_p_dtype import patch as top_p_dtype


def probabilities_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_p_dtype, "precise", lambda logits: logits)


MUTANTS = {"top-p-dtype": probabilities_as_they_come}
