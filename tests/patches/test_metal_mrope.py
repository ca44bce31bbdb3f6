from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.positions.metal_mrope.patch import complete_positions, lacks_positions

Q = mx.zeros((2, 4, 5, 8))


def complete(position_ids, fused=True):
    rope = SimpleNamespace(fused_apply=fused)
    if not lacks_positions(rope, Q, position_ids):
        return None
    return complete_positions(rope, Q, position_ids)


@pytest.mark.parametrize("shape", [(1, 5), (3, 1, 5), (2, 1), (3, 2, 1)])
def test_kernel_gets_all_positions(shape):
    ids = mx.random.randint(0, 9, shape)
    expected = mx.broadcast_to(ids, (*shape[:-2], 2, 5))
    assert mx.array_equal(complete(ids), expected)


@pytest.mark.parametrize("shape", [(2, 5), (3, 2, 5)])
def test_complete_positions_are_unchanged(shape):
    assert complete(mx.zeros(shape)) is None


def test_other_calls():
    assert complete(mx.zeros((1, 5)), fused=False) is None
    with pytest.raises(ValueError, match=r"position ids of shape \(1, 7\) for 2 rows of 5 tokens"):
        complete(mx.zeros((1, 7)))
