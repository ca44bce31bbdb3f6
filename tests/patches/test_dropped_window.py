from types import SimpleNamespace

import mlx.core as mx

from mlx_patches.patches.masks.dropped_window import patch as dropped_window


class Held:
    _idx = 4


def test_rows_see_only_their_window():
    """A row with two columns of padding, and one without."""
    padding = mx.array([2, 0])[:, None, None, None]
    places = mx.arange(6)
    mask = (places[4:, None] >= places) & (places >= padding)
    seen = dropped_window.narrow_mask(mask, 2, Held(), 3)
    assert (
        seen[0, 0].tolist()
        == seen[1, 0].tolist()
        == [[False, False, True, True, True, False], [False, False, False, True, True, True]]
    )
    added = dropped_window.narrow_mask(mx.where(mask, 0.0, -1e9), 2, Held(), 3)
    assert mx.array_equal(added == 0, seen).item()
    assert mx.array_equal(dropped_window.narrow_mask("causal", 2, Held(), 3), seen[0, 0]).item()

    for mask in (None, "causal", mx.ones((1, 1, 2, 6), dtype=mx.bool_)):
        assert dropped_window.narrow_mask(mask, 2, Held(), 6) is mask

    cache = Held()
    cache.max_size = 4
    assert dropped_window.narrow_mask(None, 1, cache, 3) is None


def test_layer_with_window_narrows_mask():
    x, layer = mx.zeros((1, 2, 4)), SimpleNamespace(_dropped_window=3)
    assert dropped_window.hide_beyond_window(layer, x, "causal", Held()).shape == (2, 6)


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"dropped-window": ((SimpleNamespace(), [[0]], None, None), {})}
