import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.probes.fixtures import own_class_of

from ..releases.conftest import run_probe
from ..releases.models import module_or_skip

PATCH = catalogue.builtin().get("long-rope")
LIMIT, WIDTH = 16, 8


def states(length):
    return mx.random.normal((2, 2, length, WIDTH), key=mx.random.key(0))


def solo_rows(rope, length, offsets):
    return [rope(states(length)[row : row + 1], one)[0] for row, one in enumerate(offsets)]


@pytest.fixture
def long(ungated):
    """A LongRoPE with two sets of frequencies and scales and a partial rotary factor."""
    module_or_skip("mlx_lm.models.rope_utils", "SuScaledRoPE")
    if not run_probe(PATCH, *PATCH.targets).red:
        pytest.skip("this release has one set of frequencies")
    rope = own_class_of(*PATCH.targets)(
        WIDTH - 2,
        max_position_embeddings=4 * LIMIT,
        original_max_position_embeddings=LIMIT,
        short_factor=[1.0] * (WIDTH // 2 - 1),
        long_factor=[4.0] * (WIDTH // 2 - 1),
        short_mscale=1.25,
        long_mscale=1.5,
    )
    ungated("long-rope")
    return rope


@pytest.mark.parametrize("length", [1, 3])
def test_each_row_is_bit_identical_to_solo(long, length):
    for offsets in ([0, 5], [-1, 20], [20, 17], [LIMIT - length, LIMIT - length + 1]):
        together = long(states(length), mx.array(offsets))
        for one, solo in zip(together, solo_rows(long, length, offsets), strict=True):
            assert mx.array_equal(one, solo)


def test_no_device_reads(long):
    turned = mx.compile(lambda x, offset: long(x, offset))(states(1), mx.array([2, 40]))
    assert turned.shape == states(1).shape  # not evaluated: its kernel takes long to compile
