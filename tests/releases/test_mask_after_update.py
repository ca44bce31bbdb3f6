"""Masks that outlive a cut: which cuts, and that a row alone goes as before."""

from __future__ import annotations

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.masks.mask_after_update import whole
from mlx_patches.probes.mask_after_update import batch_caches, decoder, run

from .conftest import installed

mx = pytest.importorskip("mlx.core")
PATCH = catalogue.builtin().get("mask-after-update")
needs_vlm = pytest.mark.skipif(not installed("mlx-vlm"), reason="no mlx-vlm here")
ROW = [list(range(1, 12))]


def test_only_a_cut_from_the_start_leaves_it_whole():
    mask = mx.arange(24).reshape(2, 1, 3, 4) % 2 == 0
    kept = whole(mask)
    assert kept.dtype == mask.dtype
    assert kept[..., :1].shape == kept[..., :9].shape == mask.shape
    for index in (0, (..., slice(1, 3)), (slice(None), 0), (..., slice(None, 2), slice(None))):
        assert mx.array_equal(kept[index], mask[index])
    assert whole("causal") == "causal"
    assert whole(None) is None


@needs_vlm
@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_rows_alone_and_equal_rows_are_as_before(target, ungated):
    model, solo_caches = decoder(target)

    before = run(model, ROW, (0,), solo_caches())
    ungated(PATCH)
    assert mx.array_equal(run(model, ROW, (0,), solo_caches()), before)
    rows = [ROW[0], ROW[0][::-1]]
    together = run(model, rows, (0, 0), batch_caches(solo_caches(), (0, 0)))
    assert mx.allclose(together[0], before[0], atol=1e-4)


@needs_vlm
@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_a_mask_that_is_given_is_used_as_it_is(target, ungated):
    ungated(PATCH)
    model, solo_caches = decoder(target)
    open_mask = mx.ones((1, 1, 11, 11), dtype=mx.bool_)
    causal = model(mx.array(ROW), cache=solo_caches(), **places(model))
    seen = model(mx.array(ROW), None, open_mask, solo_caches(), **places(model))
    assert not mx.allclose(seen[0, 0], causal[0, 0], atol=1e-3)


def places(model) -> dict:
    import inspect

    if "position_ids" not in inspect.signature(type(model).__call__).parameters:
        return {}
    return {"position_ids": mx.array([[list(range(11))]] * 3)}
