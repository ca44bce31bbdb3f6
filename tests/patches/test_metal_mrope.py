"""The positions that M-RoPE's kernel gets, and a broken version of the patch."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.positions.metal_mrope.patch import lacks_positions, rotated

Q = mx.zeros((2, 4, 5, 8))


def given(position_ids, fused=True):
    """What the release gets: the position ids, or None where the patch is not asked."""
    rope = SimpleNamespace(fused_apply=fused)
    if not lacks_positions(rope, Q, Q, position_ids):
        return None
    return rotated(lambda rope, q, k, position_ids: position_ids, rope, Q, Q, position_ids)


@pytest.mark.parametrize("shape", [(1, 5), (3, 1, 5), (2, 1), (3, 2, 1)])
def test_kernel_gets_all_positions(shape):
    ids = mx.random.randint(0, 9, shape)
    expected = mx.broadcast_to(ids, (*shape[:-2], 2, 5))
    assert mx.array_equal(given(ids), expected)


@pytest.mark.parametrize("shape", [(2, 5), (3, 2, 5)])
def test_complete_positions_are_unchanged(shape):
    assert given(mx.zeros(shape)) is None


def test_no_kernel_no_change():
    assert given(mx.zeros((1, 5)), fused=False) is None


def test_foreign_positions_are_refused():
    with pytest.raises(ValueError, match=r"position ids of shape \(1, 7\) for 2 rows of 5 tokens"):
        given(mx.zeros((1, 7)))
