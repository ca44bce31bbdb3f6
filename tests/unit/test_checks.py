"""Checks (``Target.when``): a call that no layer needs runs only the original."""

import pytest

from mlx_patches.core.patch import around

from .conftest import apply_patches, patch_of, target


def add_hundred(original, *args):
    return original(*args) + 100


def layer(name: str = "attend", when=None):
    return target(name, factory=around(add_hundred), when=when)


def apply(*layers):
    patches = [patch_of(one, id=f"fix-{number}") for number, one in enumerate(layers)]
    return apply_patches(*patches), patches


def test_check_decides_layer(cache):
    apply(layer(when=lambda x: x > 5))
    assert [cache.attend(x) for x in (1, 6)] == [2, 107]


def test_one_true_check_runs_all_layers(cache):
    apply(layer(when=lambda x: x > 5), layer(when=lambda x: x > 7))
    assert [cache.attend(x) for x in (1, 6, 8)] == [2, 207, 209]


def test_layer_without_check_always_runs(cache):
    manager, (_, second) = apply(layer(when=lambda x: False), layer())
    assert cache.attend(1) == 202
    manager.restore([second.id])
    assert cache.attend(1) == 2


def test_original_error_in_skipped_call_is_raised(cache, caplog):
    manager, _ = apply(layer(when=lambda x: False))
    with pytest.raises(TypeError):
        cache.attend(None)
    assert [outcome.status for outcome in manager.status()] == ["applied"]
    assert caplog.records == []


def test_check_gets_keyword_arguments(cache):
    seen = []
    apply(layer(when=lambda x: seen.append(x)))
    assert cache.attend(x=3) == 4
    assert seen == [3]


def test_property_layers(cache):
    first = target("Cache.state", factory=around(lambda get, one: [*get(one), "seen"]))
    apply(first._replace(when=lambda one: False))
    assert cache.Cache().state == [0, "seen"]
