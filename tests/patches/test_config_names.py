"""A broken version of ``config-names``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.loading.config_names import patch as config_names


def configs_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_names, "_LETTERS", dict.fromkeys(config_names._LETTERS, "M"))
    monkeypatch.setattr(config_names, "_FEED_FORWARD", "nowhere")
    monkeypatch.setattr(config_names, "_OLD_KINDS", {})


MUTANTS = {"config-names": configs_as_they_come}
