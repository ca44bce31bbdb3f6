"""Gemma 3n beyond the probes: whole models, past the window, in batches."""

from __future__ import annotations

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.models.altup_batch.patch import one_row
from mlx_patches.patches.positions.shared_layer_offset.patch import before
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.batch_invariance import TOLERANCE, differs, measure, tiny

from .conftest import installed

mx = pytest.importorskip("mlx.core")
PATCHES = [
    catalogue.builtin().get(name)
    for name in ("offset-alias", "mask-from-cache-list", "shared-layer-offset", "altup-batch")
]


@pytest.fixture(params=["mlx-lm", "mlx-vlm"])
def distribution(request):
    if not installed(request.param):
        pytest.skip(f"no {request.param} here")
    return request.param


@pytest.fixture
def repaired(ungated):
    for patch in PATCHES:
        ungated(patch)


def test_a_text_in_pieces_says_what_it_says_at_once(distribution, repaired):
    model = tiny(distribution, "gemma3n")
    assert differs(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)) <= TOLERANCE


@pytest.mark.parametrize("lengths", [(5, 9), (9, 3, 6), (12, 2)])
def test_a_batch_says_what_its_rows_say_alone(distribution, repaired, lengths):
    try:
        result = measure(tiny(distribution, "gemma3n"), lengths)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert not result.red, result.detail


def test_gemma4_in_pieces_says_what_it_says_at_once(repaired):
    try:
        model = tiny("mlx-vlm", "gemma4")
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert differs(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)) <= TOLERANCE


def test_without_shared_layers_nothing_changes(distribution, ungated):
    text = [list(range(1, 8))]
    model = tiny(distribution, "gemma3n", num_kv_shared_layers=0)
    said = model.call(text, model.make_cache())
    for patch in PATCHES[2:]:
        ungated(patch)
    assert mx.array_equal(said, model.call(text, model.make_cache()))


def test_without_a_cache_nothing_changes(distribution, ungated):
    text = [list(range(1, 8))]
    model = tiny(distribution, "gemma3n")
    said = model.call(text, None)
    for patch in PATCHES[2:]:
        ungated(patch)
    assert mx.array_equal(said, model.call(text, None))


def test_the_view_is_of_the_cache_s_own_kind():
    class Cache:
        bits = 8
        offset = mx.array([5, 2])
        state = ("keys", "values", "offset", "padding")

    view = before(Cache(), 2)
    assert isinstance(view, Cache)
    assert view.bits == 8
    assert view.state == ("keys", "values")
    assert view.offset.tolist() == [3, 0]
    assert before(Cache, 2).__wrapped__.offset.tolist() == [5, 2]


def test_rows_are_laid_end_to_end():
    states = mx.arange(24).reshape(2, 3, 2, 2)
    assert one_row(states).shape == (2, 1, 6, 2)
    assert mx.array_equal(one_row(states).reshape(states.shape), states)


def test_every_release_says_what_mlx_lm_0_32_says(distribution, repaired):
    """The logits equal those of the fixed release for the same weights and config."""
    fields = {"laurel_rank": 8, "altup_correct_scale": True, "altup_coef_clip": 120.0}
    model = tiny(distribution, "gemma3n", **fields)
    said = model.call([list(range(1, 8))], model.make_cache())[0, -1, :4]
    assert mx.allclose(said, mx.array([-0.94541, -0.17857, -0.07295, 1.32236]), atol=1e-3)
