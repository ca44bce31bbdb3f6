"""The fixtures of the tests against releases."""

import pytest

from mlx_patches.lab import LabModel

from ..releases.conftest import (  # noqa: F401  # noqa: F401
    beside,
    device_reads,
    distribution,
    nothing_left,
    patched,
    seeded,
    ungated,
)
from ..releases.costs import decoder_rows


@pytest.fixture
def calls(model: LabModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return decoder_rows(model, monkeypatch)
