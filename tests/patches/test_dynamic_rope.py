from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.positions.dynamic_rope.probe import make_rope
from mlx_patches.patches.positions.dynamic_rope.probe_internlm import (
    BEYOND,
    HEADS,
    LIMIT,
    NEAR,
    WIDTH,
    WITHIN,
    make_layer,
)
from mlx_patches.probes.fixtures import own_class_of

from ..releases.models import module_or_skip, or_skip

DYNAMIC, INTERNLM = map(catalogue.builtin().get, ("dynamic-rope", "internlm-positions"))
ROPE_LIMIT = 16


@pytest.fixture(params=[target for target in INTERNLM.targets if "Attention" in target.name])
def module(request):
    return module_or_skip(request.param.module)


@pytest.mark.parametrize("kind", ["none", "linear", "dynamic"])
def test_internlm_rows_equal_solo(kind, module, ungated):
    ungated("dynamic-rope", "internlm-positions")
    rope = make_layer(module, kind).rope
    places = [WITHIN, NEAR, BEYOND]
    for length in (1, 3, LIMIT):
        x = mx.random.normal((len(places), HEADS, length, WIDTH), key=mx.random.key(0))
        together = rope(x, offset=mx.array(places))
        for row, place in enumerate(places):
            solo = rope(x[row : row + 1], offset=place)[0]
            assert mx.allclose(together[row], solo, atol=1e-5), (length, place)


def states(length):
    return mx.random.normal((2, 2, length, 8), key=mx.random.key(0))


def solo_rows(rope, length, offsets):
    return [rope(states(length)[row : row + 1], one)[0] for row, one in enumerate(offsets)]


@pytest.fixture(params=DYNAMIC.targets, ids=lambda target: target.path)
@or_skip()
def dynamic(request, ungated):
    """A rope with dynamic scaling, of each class that the release has."""
    module_or_skip(request.param.module)
    rope = make_rope(own_class_of(request.param), traditional=False)
    before = [rope(states(3), offset) for offset in (0, 5, 40)]
    ungated("dynamic-rope")
    after = [rope(states(3), offset) for offset in (0, 5, 40)]
    assert all(map(mx.array_equal, before, after))
    return rope


@pytest.mark.parametrize("length", [1, 3])
def test_row_within_limit_is_bit_identical(dynamic, length):
    for offsets in ([0, 3], [-2, 4], [5, 40], [ROPE_LIMIT - 3, 17]):
        together = dynamic(states(length), mx.array(offsets))
        for row, (one, solo) in enumerate(
            zip(together, solo_rows(dynamic, length, offsets), strict=True)
        ):
            if offsets[row] + 3 <= ROPE_LIMIT:
                assert mx.array_equal(one, solo)
            else:
                assert mx.allclose(one, solo, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype_is_kept(dynamic, dtype):
    x = states(1).astype(getattr(mx, dtype))
    turned = dynamic(x, mx.array([2, 40]))
    assert turned.dtype == x.dtype
    assert mx.allclose(turned[1], dynamic(x[1:], 40)[0], atol=0.05)


def test_no_device_reads(dynamic):
    """MLX refuses to read an array while it compiles a function."""
    turned = mx.compile(lambda x, offset: dynamic(x, offset))(states(1), mx.array([2, 40]))
    assert turned.shape == states(1).shape  # not evaluated: its kernel takes long to compile


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"internlm-positions": ((SimpleNamespace(), [[0]], 0), {})}
