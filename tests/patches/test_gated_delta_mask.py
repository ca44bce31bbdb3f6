"""A broken version of ``gated-delta-mask``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.masks.gated_delta_mask import patch as gated_delta_mask


def masks_of_the_last_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_delta_mask, "one_a_row", lambda mask: False)


MUTANTS = {"gated-delta-mask": masks_of_the_last_axis}
