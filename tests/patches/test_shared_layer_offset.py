import mlx.core as mx
import pytest

from mlx_patches.patches.positions.shared_layer_offset import patch as shared_layer_offset
from mlx_patches.probes.batch_invariance import TOLERANCE, compare_splits, tiny

from ..releases.models import or_skip


@pytest.fixture
def repaired(beside):
    beside("offset-alias", "mask-from-cache-list", "shared-layer-offset", "altup-batch")


def test_chunked_text_equals_whole(distribution, repaired):
    model = tiny(distribution, "gemma3n")
    assert compare_splits(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)) <= TOLERANCE


@or_skip()
def test_gemma4_chunked_equals_whole(repaired):
    model = tiny("mlx-vlm", "gemma4")
    assert compare_splits(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)) <= TOLERANCE


@pytest.mark.parametrize("own", [{"num_kv_shared_layers": 0}, {}], ids=["own layers", "no cache"])
def test_nothing_without_shared_layers_or_cache(own, distribution, beside):
    model = tiny(distribution, "gemma3n", **own)

    def compute_logits():
        return model.call([list(range(1, 8))], model.make_cache() if own else None)

    before = compute_logits()
    beside("shared-layer-offset", "altup-batch")
    assert mx.array_equal(before, compute_logits())


def test_view_has_cache_class():
    class Cache:
        bits = 8
        offset = mx.array([5, 2])
        state = ("keys", "values", "offset", "padding")

    view = shared_layer_offset.rewind_cache(Cache(), 2)
    assert isinstance(view, Cache)
    assert view.bits == 8
    assert view.state == ("keys", "values")
    assert view.offset.tolist() == [3, 0]
    assert shared_layer_offset.rewind_cache(Cache, 2).__wrapped__.offset.tolist() == [5, 2]
