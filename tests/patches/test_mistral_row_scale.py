import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.positions.mistral_row_scale import patch as mistral_row_scale
from mlx_patches.patches.positions.mistral_row_scale.probe import build_model, probe
from mlx_patches.probes.batch_invariance import batch_cache

from ..releases.models import or_skip

PATCH = catalogue.builtin().get("mistral-row-scale")


@pytest.fixture(params=["ministral3", "mistral4"])
@or_skip()
def model(request):
    probe(PATCH.targets[0])
    return build_model(request.param)


def list_outputs(model, cache):
    return [model.call(row, cache) for row in ([list(range(1, 8))], [[9]], [[3]])]


def test_solo_is_bit_identical(model, ungated):
    before = list_outputs(model, model.make_cache()), list_outputs(model, batch_cache(model, [0]))
    ungated("mistral-row-scale")
    after = list_outputs(model, model.make_cache()), list_outputs(model, batch_cache(model, [0]))
    for one, other in zip(before, after, strict=True):
        assert all(map(mx.array_equal, one, other))


def test_batch_leaves_no_state(model, ungated):
    ungated("mistral-row-scale")
    before = list_outputs(model, model.make_cache())
    cache = batch_cache(model, [2, 0])
    with pytest.raises(ValueError, match=r"."):
        model.call([[1, 2, 3]] * 3, cache)  # three rows for a cache of two
        mx.eval([layer.keys for layer in cache])
    assert mistral_row_scale._batch.get() is None
    assert all(map(mx.array_equal, before, list_outputs(model, model.make_cache())))


def test_padding_has_first_position_scale():
    make = mistral_row_scale.scale_rows
    token = mistral_row_scale._batch.set((mx.array([-2, 3]), 4))
    try:
        scale = make(None, 0, 4, 0.5, 4)
    finally:
        mistral_row_scale._batch.reset(token)
    assert scale.shape == (2, 1, 4, 1)
    grown = 1 + 0.5 * 0.6931472
    assert mx.allclose(scale[:, 0, :, 0], mx.array([[1.0] * 4, [1.0, grown, grown, grown]]))
