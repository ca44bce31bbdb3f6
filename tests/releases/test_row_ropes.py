"""Ropes that change at a length: rows get the bits that they get alone, without device reads."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.positions.dynamic_rope.probe import make_rope

from .conftest import installed, run_probe

mx = pytest.importorskip("mlx.core")
DYNAMIC, LONG = (catalogue.builtin().get(id_) for id_ in ("dynamic-rope", "long-rope"))
LIMIT, WIDTH = 16, 8


def kind(target):
    """The target's class; skips where the release does not define it."""
    if not installed(target.distribution):
        pytest.skip(f"no {target.distribution} here")
    try:
        module = importlib.import_module(target.module)
    except ModuleNotFoundError as reason:
        pytest.skip(str(reason))
    found = vars(module).get(target.name.partition(".")[0])
    if found is None or found.__module__ != target.module:
        pytest.skip(f"{target.module} does not define it")
    return found


def states(length):
    return mx.random.normal((2, 2, length, WIDTH), key=mx.random.key(0))


def rows_alone(rope, length, offsets):
    return [rope(states(length)[row : row + 1], one)[0] for row, one in enumerate(offsets)]


@pytest.fixture(params=DYNAMIC.targets, ids=lambda target: target.path)
def dynamic(request, ungated):
    """A rope with dynamic scaling, of each class that the release has."""
    rope = make_rope(kind(request.param), traditional=False)
    before = [rope(states(3), offset) for offset in (0, 5, 40)]
    ungated(DYNAMIC)
    after = [rope(states(3), offset) for offset in (0, 5, 40)]
    assert all(map(mx.array_equal, before, after))
    return rope


@pytest.mark.parametrize("length", [1, 3])
def test_a_row_within_the_limit_has_the_bits_that_it_has_alone(dynamic, length):
    for offsets in ([0, 3], [-2, 4], [5, 40], [LIMIT - 3, 17]):
        together = dynamic(states(length), mx.array(offsets))
        for row, (one, alone) in enumerate(
            zip(together, rows_alone(dynamic, length, offsets), strict=True)
        ):
            if offsets[row] + 3 <= LIMIT:
                assert mx.array_equal(one, alone)
            else:
                assert mx.allclose(one, alone, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_type_stays(dynamic, dtype):
    x = states(1).astype(getattr(mx, dtype))
    turned = dynamic(x, mx.array([2, 40]))
    assert turned.dtype == x.dtype
    assert mx.allclose(turned[1], dynamic(x[1:], 40)[0], atol=0.05)


def test_dynamic_scaling_reads_nothing_from_the_device(dynamic):
    """MLX refuses to read an array while it compiles a function."""
    turned = mx.compile(lambda x, offset: dynamic(x, offset))(states(1), mx.array([2, 40]))
    assert turned.shape == states(1).shape  # not evaluated: its kernel takes long to compile


@pytest.fixture
def long(ungated):
    """A LongRoPE with two sets of frequencies and scales, which rotates a part of its input."""
    found = kind(LONG.targets[0])
    if not run_probe(LONG, LONG.targets[0]).red:
        pytest.skip("this release has one set of frequencies")
    rope = found(
        WIDTH - 2,
        max_position_embeddings=4 * LIMIT,
        original_max_position_embeddings=LIMIT,
        short_factor=[1.0] * (WIDTH // 2 - 1),
        long_factor=[4.0] * (WIDTH // 2 - 1),
        short_mscale=1.25,
        long_mscale=1.5,
    )
    ungated(LONG)
    return rope


@pytest.mark.parametrize("length", [1, 3])
def test_every_row_has_the_bits_that_it_has_alone(long, length):
    for offsets in ([0, 5], [-1, 20], [20, 17], [LIMIT - length, LIMIT - length + 1]):
        together = long(states(length), mx.array(offsets))
        for one, alone in zip(together, rows_alone(long, length, offsets), strict=True):
            assert mx.array_equal(one, alone)


def test_long_rope_reads_nothing_from_the_device(long):
    turned = mx.compile(lambda x, offset: long(x, offset))(states(1), mx.array([2, 40]))
    assert turned.shape == states(1).shape  # not evaluated: its kernel takes long to compile
