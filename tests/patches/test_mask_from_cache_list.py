import importlib

import mlx.core as mx
import pytest

from mlx_patches.core.patch import Target
from mlx_patches.patches import catalogue
from mlx_patches.patches.masks.mask_from_cache_list.probe import mask_of, same
from mlx_patches.probes.kit import require_own

from ..releases.conftest import is_installed, run_probe
from ..releases.models import or_skip

PATCH = catalogue.builtin().get("mask-from-cache-list")


@pytest.fixture(
    params=[t for t in PATCH.targets if is_installed(t.distribution)], ids=lambda one: one.path
)
@or_skip()
def target(request) -> Target:
    require_own(request.param)
    return request.param


@pytest.fixture
def caches(target):
    return importlib.import_module(f"{target.module.rpartition('.')[0]}.cache")


def test_solo_row_is_unchanged(target, caches, ungated):
    create = require_own(target)
    before = [mask_of(create, n, [caches.KVCache()]) for n in (1, 5)]
    ungated("mask-from-cache-list")
    create = require_own(target)
    assert [mask_of(create, n, [caches.KVCache()]) for n in (1, 5)] == before
    assert (
        mask_of(create, 5, []) == mask_of(create, 5, None) == mask_of(create, 5, [None]) == "causal"
    )


def test_other_arguments_are_passed_on(target, caches, ungated):
    ungated("mask-from-cache-list")
    create = require_own(target)
    cache = caches.BatchKVCache([2, 0])
    hidden = mx.zeros((2, 6, 4))
    windowed = create(hidden, cache=[cache], window_size=3)
    assert same(windowed, create(hidden, cache, 3))
    assert not same(windowed, create(hidden, cache))
    assert isinstance(create(hidden, [caches.KVCache()], return_array=True), mx.array)


@pytest.mark.parametrize("name", ["llava", "idefics3"])
def test_importing_models_are_patched(name, ungated):
    if not is_installed("mlx-vlm"):
        pytest.skip("no mlx-vlm here")
    model = importlib.import_module(f"mlx_vlm.models.{name}.language")
    cache = importlib.import_module("mlx_vlm.models.cache")
    batch = (
        cache.__dict__.get("BatchKVCache")
        or importlib.import_module("mlx_lm.models.cache").BatchKVCache
    )
    ungated("mask-from-cache-list")
    layers = [batch([2, 0]), batch([2, 0])]
    mask = mask_of(model.create_attention_mask, 5, layers)
    assert same(mask, layers[0].make_mask(5))


def recurrent(caches):
    """A batch's recurrent state with left padding; skips if the release has no such class."""
    if not hasattr(caches, "ArraysCache"):
        pytest.skip("this release has no recurrent states")
    state = caches.ArraysCache(2)
    state.left_padding = mx.array([2, 0])
    return state


@pytest.mark.parametrize("tokens", [1, 5])
def test_recurrent_cache_is_skipped(tokens, target, caches, ungated):
    """Its ``make_mask`` has other arguments and returns another kind of mask."""
    state = recurrent(caches)
    if not run_probe(PATCH, target).red:
        pytest.skip("the release takes the first of a list itself, of whatever kind")
    ungated("mask-from-cache-list")
    create = require_own(target)
    batch = caches.BatchKVCache([2, 0])
    assert same(mask_of(create, tokens, [state, batch]), batch.make_mask(tokens))
    solo = [recurrent(caches), caches.KVCache()]
    assert mask_of(create, tokens, solo) == mask_of(create, tokens, None)


@pytest.mark.parametrize("window_first", [True, False])
def test_first_attention_cache_is_used(window_first, target, caches, ungated):
    """Gemma 3n of mlx-vlm 0.4 passes a slice that begins with a layer of the wanted kind."""
    if not hasattr(caches, "BatchRotatingKVCache"):
        pytest.skip("this release has no batches with windows")
    ungated("mask-from-cache-list")
    create = require_own(target)
    layers = [caches.BatchKVCache([2, 0]), caches.BatchRotatingKVCache(4, [2, 0])]
    keys = mx.zeros((2, 1, 9, 4))
    for layer in layers:
        layer.update_and_fetch(keys, keys)
    given = layers[::-1] if window_first else layers
    assert same(mask_of(create, 1, given), given[0].make_mask(1))


@pytest.mark.parametrize("held", [0, 9])
@pytest.mark.parametrize("tokens", [1, 3])
def test_solo_row_gets_first_layer_mask(tokens, held, target, caches, ungated):
    """The mask equals the release's mask of that cache."""
    create = require_own(target)
    layers = [caches.KVCache(), caches.RotatingKVCache(4)]
    for layer in layers if held else ():
        layer.update_and_fetch(mx.zeros((1, 1, held, 4)), mx.zeros((1, 1, held, 4)))
    before = mask_of(create, tokens, layers)
    ungated("mask-from-cache-list")
    create = require_own(target)
    assert same(mask_of(create, tokens, layers), before)
    for given in (layers, layers[::-1], tuple(layers)):
        assert same(mask_of(create, tokens, given), mask_of(create, tokens, given[0]))
