"""A broken version of ``processors-prompt``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.generation.processors_prompt import patch as processors_prompt


def prompts_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors_prompt, "unseen", lambda prompt, tokens: prompt[:0])


MUTANTS = {"processors-prompt": prompts_of_one_token}
