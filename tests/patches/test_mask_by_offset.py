import mlx.core as mx
import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches import catalogue
from mlx_patches.patches.masks.mask_by_offset import patch as mask_by_offset
from mlx_patches.patches.masks.mask_by_offset.probe import attention_of, make_filled_cache, probe

from ..releases.conftest import is_installed
from ..releases.models import or_skip

PATCH = catalogue.builtin().get("mask-by-offset")
pytestmark = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="no mlx-vlm here")


@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
@or_skip()
def test_decode_reads_no_device(target, ungated):
    """MLX refuses to read an array while it compiles a function."""
    if not probe(target).red:
        pytest.skip("the release is right")
    model = build(Family(target.distribution, target.module.split(".")[2]))
    layer = attention_of(model.module, target)

    def step(x, mask, places):
        cache = make_filled_cache(layer)
        cache.offset = places[0, :, 0]
        return layer(x, mask, cache, places)

    x = mx.random.normal((2, 1, layer.q_proj.weight.shape[1]), key=mx.random.key(0))
    places = mx.broadcast_to(mx.array([2, 3])[None, :, None], (3, 2, 1))
    mask = make_filled_cache(layer).make_mask(1, return_array=True)
    with pytest.raises((RuntimeError, ValueError), match="eval"):
        mx.compile(step)(x, mask, places)
    ungated("mask-by-offset")
    assert mx.compile(step)(x, mask, places).shape == x.shape


def test_attention_sees_cache_without_positions():
    class Cache:
        offset = mx.array([1, 2])

    cache, mask = Cache(), mx.ones((2, 1, 1, 5), dtype=mx.bool_)
    assert mask_by_offset.replace_offset(cache, mask, None) is cache
    seen = mask_by_offset.replace_offset(cache, mask, mx.zeros((3, 2, 1)))
    assert seen.offset == 5
    assert isinstance(seen, Cache)
    assert not any(map(mask_by_offset.has_mask, (None, "causal")))
