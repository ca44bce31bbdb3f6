"""What enters a cache with padding: zeros for padding, every real token as it came."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.offset_alias import cache_of, make

from .conftest import installed

mx = pytest.importorskip("mlx.core")
PATCH = catalogue.builtin().get("padding-nan")


@pytest.fixture(
    params=[t for t in PATCH.targets if installed(t.distribution)], ids=lambda target: target.path
)
def batch_class(request):
    try:
        return cache_of(request.param)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def filled(cache, *pieces: int, width: int = 64):
    """Feed ones; returns what the cache then hands out, None where it is quantized."""
    held = None
    for count in pieces:
        rows = cache.left_padding.shape[0]
        ones = mx.ones((rows, 1, count, width), dtype=mx.bfloat16)
        held, _ = cache.update_and_fetch(ones, 2 * ones)
    return held[..., 0][:, 0].tolist() if isinstance(held, mx.array) else None


def test_padding_columns_are_zero_and_no_other(batch_class, ungated):
    ungated(PATCH)
    held = filled(make(batch_class, [3, 0, 5], 16), 4, 2, 1)
    assert held in (None, [[0.0] * pad + [1.0] * (7 - pad) for pad in (3, 0, 5)])


def test_past_the_window_padding_is_still_told_apart(batch_class, ungated):
    if "Rotating" not in batch_class.__name__:
        pytest.skip("has no window")
    ungated(PATCH)
    cache = make(batch_class, [7, 0], 4)
    assert filled(cache, 5) == [[0.0] * 5, [1.0] * 5]
    assert filled(cache, 5) == [[0.0] * 5 + [1.0] * 3, [1.0] * 8]  # 3 kept, 2 of padding
    assert filled(cache, 1, 1, 1, 1, 1, 3) == [[1.0] * 6, [1.0] * 6]


def test_types_and_values_stay(batch_class, ungated):
    ungated(PATCH)
    cache = make(batch_class, [0, 0], 16)
    keys = mx.random.normal((2, 1, 5, 64), key=mx.random.key(0)).astype(mx.bfloat16)
    held, _ = cache.update_and_fetch(keys, keys)
    if isinstance(held, mx.array):
        assert held.dtype == mx.bfloat16
        assert mx.array_equal(held, keys)


def test_rows_that_the_cache_was_not_made_for_are_left_alone(batch_class, ungated):
    manager = ungated(PATCH)
    cache = make(batch_class, [1, 2], 16)
    keys = mx.ones((4, 1, 5, 64), dtype=mx.bfloat16)
    held, _ = cache.update_and_fetch(keys, keys)
    if isinstance(held, mx.array):
        assert mx.array_equal(held, keys)
    assert all(outcome.status != "failed" for outcome in manager.status())


@pytest.mark.parametrize("name", ["gemma3n", "moondream3"])
def test_models_whose_padding_is_nan(name, ungated):
    """The model's caches, whichever package they are from, end the NaN."""
    if not installed("mlx-vlm"):
        pytest.skip("no mlx-vlm here")
    from mlx_patches.lab import Family, NotBuilt
    from mlx_patches.lab.build import build

    importlib.import_module("mlx_vlm.models.cache")
    try:
        model = build(Family("mlx-vlm", name))
        cache = model.make_batch_cache([3, 0])
    except (NotBuilt, NotApplicable) as reason:
        pytest.skip(str(reason))
    width = model.config["hidden_size"]
    table = mx.array([[0, 0, 0, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7]])
    embeds = mx.random.normal((2, 7, width), key=mx.random.key(1))
    embeds[0, :3] = 0

    def said(cache):
        return model.call(table, cache, inputs_embeds=embeds)[:, 3:]

    try:
        before = said(cache)
    except (ValueError, TypeError) as crash:
        pytest.skip(f"this release cannot run such a batch: {crash}")
    ungated(PATCH)
    after = said(model.make_batch_cache([3, 0]))
    assert not mx.isnan(after).any()
    if not mx.isnan(before).any():
        assert mx.array_equal(before, after)
