"""A broken version of ``server-empty-prompt``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.server.server_empty_prompt import patch as server_empty_prompt


def texts_without_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_empty_prompt, "beginning", lambda tokenizer: [])


MUTANTS = {"server-empty-prompt": texts_without_beginning}
