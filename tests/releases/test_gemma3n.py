"""Gemma 3n beyond the probes: whole models, past the window, in batches."""

from __future__ import annotations

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.models.altup_batch.patch import one_row
from mlx_patches.patches.positions.shared_layer_offset.patch import before
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.batch_invariance import TOLERANCE, differs, measure
from mlx_patches.probes.tiny import gemma3n, gemma4

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
    model = gemma3n(distribution)
    assert differs(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)) <= TOLERANCE


@pytest.mark.parametrize("lengths", [(5, 9), (9, 3, 6), (12, 2)])
def test_a_batch_says_what_its_rows_say_alone(distribution, repaired, lengths):
    try:
        result = measure(gemma3n(distribution), lengths)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert not result.red, result.detail


def test_gemma4_in_pieces_says_what_it_says_at_once(repaired):
    try:
        model = gemma4(layer_types=("sliding_attention", "full_attention") * 3, shared_layers=2)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert differs(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)) <= TOLERANCE


def test_without_shared_layers_nothing_changes(distribution, ungated):
    text = [list(range(1, 8))]
    model = gemma3n(distribution, shared_layers=0)
    said = model.logits(text, model.solo_cache())
    for patch in PATCHES[2:]:
        ungated(patch)
    assert mx.array_equal(said, model.logits(text, model.solo_cache()))


def test_without_a_cache_nothing_changes(distribution, ungated):
    text = [list(range(1, 8))]
    model = gemma3n(distribution)
    said = model.logits(text, None)
    for patch in PATCHES[2:]:
        ungated(patch)
    assert mx.array_equal(said, model.logits(text, None))


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
    """The logits equal those of the fixed release for the same weights."""
    model = gemma3n(distribution)
    said = model.logits([list(range(1, 8))], model.solo_cache())[0, -1, :4]
    assert mx.allclose(said, mx.array([-0.93133, 0.21528, 0.96913, -0.24742]), atol=1e-3)
