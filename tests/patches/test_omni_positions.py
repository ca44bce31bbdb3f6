from types import SimpleNamespace

import pytest

from mlx_patches.patches.positions.omni_positions.patch import compute_positions


@pytest.mark.parametrize(
    "grids", [("images", None), (None, "videos"), ("images", "videos"), (None, None)]
)
def test_positions_are_computed_once_with_grids(grids):
    calls = []
    model = SimpleNamespace(get_rope_index=lambda *given: calls.append(given))
    compute_positions(SimpleNamespace(language_model=model), "ids", *grids)
    assert calls == ([("ids", *grids)] if any(grids) else [])
