from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.masks.mask_after_update.patch import keep_whole
from mlx_patches.patches.masks.mask_after_update.probe import run
from mlx_patches.probes.batch_invariance import batch_cache, tiny_of

from ..releases.conftest import is_installed, run_probe

PATCH = catalogue.builtin().get("mask-after-update")
needs_vlm = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="no mlx-vlm here")
ROW = [list(range(1, 12))]


@needs_vlm
@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_solo_and_equal_rows_are_unchanged(target, ungated):
    built = tiny_of(target)
    model = built.module.model

    before = run(model, ROW, (0,), built.make_cache())
    ungated("mask-after-update")
    assert mx.array_equal(run(model, ROW, (0,), built.make_cache()), before)
    rows = [ROW[0], ROW[0][::-1]]
    together = run(model, rows, (0, 0), batch_cache(built, (0, 0)))
    assert mx.allclose(together[0], before[0], atol=1e-4)


@needs_vlm
@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_given_mask_is_used(target, ungated):
    ungated("mask-after-update")
    built = tiny_of(target)
    model = built.module.model
    open_mask = mx.ones((1, 1, 11, 11), dtype=mx.bool_)
    causal = model(mx.array(ROW), cache=built.make_cache(), **places(model))
    seen = model(mx.array(ROW), None, open_mask, built.make_cache(), **places(model))
    assert not mx.allclose(seen[0, 0], causal[0, 0], atol=1e-3)


@needs_vlm
@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_sound_release_is_unchanged(target, ungated):
    built = tiny_of(target)
    model = built.module.model
    if run_probe(PATCH, target).red:
        pytest.skip("this release cuts before the update")
    rows, padding = [ROW[0], [0, 0, *ROW[0][:-2]]], (0, 2)
    before = run(model, rows, padding, batch_cache(built, padding))
    ungated("mask-after-update")
    after = run(model, rows, padding, batch_cache(built, padding))
    assert mx.array_equal(after[0], before[0])
    assert mx.array_equal(after[1, 2:], before[1, 2:])


@needs_vlm
@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_model_is_not_changed(target, ungated):
    ungated("mask-after-update")
    built = tiny_of(target)
    model = built.module.model
    layers = list(model.layers)
    parts = [type(part) for part in model.modules()]
    run(model, [ROW[0], ROW[0]], (0, 0), batch_cache(built, (0, 0)))
    assert all(one is other for one, other in zip(model.layers, layers, strict=True))
    assert [type(part) for part in model.modules()] == parts


def places(model) -> dict:
    import inspect

    if "position_ids" not in inspect.signature(type(model).__call__).parameters:
        return {}
    return {"position_ids": mx.array([[list(range(11))]] * 3)}


def test_whole_mask_is_kept_only_when_cut_to_first_columns():
    mask = mx.arange(12).reshape(1, 1, 3, 4)
    whole = keep_whole(mask)
    assert whole[..., :2] is mask and whole.shape == mask.shape
    for index in (0, (..., slice(1, 3)), (slice(None), 0), (..., -1), (..., None)):
        assert mx.array_equal(whole[index], mask[index])


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {
    "mask-after-update": (
        (SimpleNamespace(), [[0]], None, SimpleNamespace(), [SimpleNamespace()]),
        {},
    )
}
