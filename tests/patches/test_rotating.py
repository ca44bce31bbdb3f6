import array
import copy
import decimal
import importlib
import importlib.util

import mlx.core as mx
import numpy as np
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.rotating import patch as rotating
from mlx_patches.patches.caches.rotating.patch import convert_to_int

from ..releases.conftest import is_installed, run_probe

PATCH = catalogue.builtin().get("rotating-max-size")
MODULES = [
    importlib.import_module(target_module)
    for distribution, target_module in (
        ("mlx-lm", "mlx_lm.models.cache"),
        ("mlx-vlm", "mlx_vlm.models.cache"),
    )
    if is_installed(distribution) and importlib.util.find_spec(target_module)
]


def own(names):
    """The classes of these names that a release's cache module defines itself, as parameters."""
    return [
        pytest.param(vars(module)[name], id=f"{module.__name__}-{name}")
        for module in MODULES
        for name in names
        if name in vars(module) and vars(module)[name].__module__ == module.__name__
    ]


PATCHED = own(["RotatingKVCache", "BatchRotatingKVCache"])
CLASSES = PATCHED + own(["BufferedRotatingKVCache"])

MEANS_EIGHT = {
    "int": lambda: 8,
    "array": lambda: mx.array(8),
    "one element": lambda: mx.array([8]),
    "equal elements": lambda: mx.array([8, 8, 8]),
    "two axes": lambda: mx.array([[8], [8]]),
    "not evaluated": lambda: mx.array([4, 4]) + 4,
    "whole float array": lambda: mx.array([8.0]),
    "numpy scalar": lambda: np.int64(8),
    "numpy array": lambda: np.array([8, 8], dtype=np.int32),
    "numpy text": lambda: np.array(["8"]),
    "text": lambda: "8",
    "whole float": lambda: 8.0,
}
MEANS_NO_INT = {
    "nothing": lambda: None,
    "unequal": lambda: mx.array([8, 9]),
    "no element": lambda: mx.array([]),
    "half": lambda: mx.array(8.5),
    "half float": lambda: 8.5,
    "infinite": lambda: float("inf"),
    "truth": lambda: True,
    "truth array": lambda: mx.array(True),
    "word": lambda: "full",
    "empty text": lambda: "",
    "superscript": lambda: "²",
    "list": lambda: [8, 8],
}


def make(cache_class, window=8):
    if cache_class.__name__ == "BatchRotatingKVCache":
        return cache_class(window, [0, 2])
    return cache_class(window)


def outputs(cache, tokens=30):
    """Every key and value that a prompt, decode past the window and a chunk return."""
    rows = 2 if type(cache).__name__ == "BatchRotatingKVCache" else 1
    mx.random.seed(7)
    returned = []
    for count in (5, *[1] * tokens, 3, 1, 12, 1):
        states = mx.random.normal((rows, 2, count, 4))
        mask = cache.make_mask(count, window_size=8)
        returned += [*cache.update_and_fetch(states, states * 2), mask]
    return returned


def same(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        if isinstance(other, mx.array):
            assert one.dtype == other.dtype
            assert mx.array_equal(one, other)
        else:
            assert one == other


def test_release_has_rotating_cache():
    assert PATCHED


@pytest.mark.parametrize("value", MEANS_EIGHT.values(), ids=MEANS_EIGHT)
@pytest.mark.parametrize("cache_class", CLASSES)
def test_integers_are_converted(cache_class, value, ungated):
    before = make(cache_class)
    before.max_size = value()
    ungated("rotating-max-size")
    cache = make(cache_class)
    cache.max_size = value()
    assert type(vars(cache)["max_size"]) is int
    for one in (before, cache):
        assert type(one.max_size) is int
        assert one.max_size == 8


@pytest.mark.parametrize("value", MEANS_NO_INT.values(), ids=MEANS_NO_INT)
@pytest.mark.parametrize("cache_class", CLASSES)
def test_none_is_kept(cache_class, value, ungated):
    ungated("rotating-max-size")
    cache = make(cache_class)
    written = value()
    cache.max_size = written
    assert cache.max_size is written


def test_conversion_never_raises():
    for value in (array.array("i", [8]), decimal.Decimal(8), object(), b"8", 1j, float("nan")):
        assert convert_to_int(value) is value


@pytest.mark.parametrize("cache_class", CLASSES)
def test_plain_int_is_not_converted(cache_class, ungated, monkeypatch):
    def never(value):
        raise AssertionError("an int was converted on read")

    ungated("rotating-max-size")
    cache = make(cache_class)
    monkeypatch.setattr(rotating, "convert_to_int", never)
    assert cache.max_size == 8


@pytest.mark.parametrize("window", (4, 8, 16, 64))
@pytest.mark.parametrize("cache_class", CLASSES)
def test_correct_program_is_bit_identical(cache_class, window, ungated):
    plain = make(cache_class, window)
    wanted = outputs(plain)
    ungated("rotating-max-size")
    cache = make(cache_class, window)
    same(outputs(cache), wanted)
    same(cache.state, plain.state)
    assert getattr(cache, "meta_state", None) == getattr(plain, "meta_state", None)
    assert vars(cache).keys() == vars(plain).keys()


@pytest.mark.parametrize("cache_class", CLASSES)
def test_restored_cache(cache_class, ungated):
    """Restored by the release, and by a host that assigns the saved text."""
    if not hasattr(cache_class, "meta_state"):
        pytest.skip("this release saves no text (mlx-lm from 0.32.0)")
    ungated("rotating-max-size")
    saved = make(cache_class)
    outputs(saved)
    loaded = make(cache_class, 64)
    loaded.state, loaded.meta_state = saved.state, saved.meta_state
    assert type(loaded.max_size) is int
    assert loaded.max_size == 8
    texts = saved.meta_state
    loaded.max_size = texts[0 if cache_class.__name__.startswith("Batch") else 1]
    assert type(loaded.max_size) is int
    assert loaded.max_size == 8


@pytest.mark.parametrize("batch_class", own(["BatchRotatingKVCache"]))
def test_merged_cache(batch_class, ungated):
    if not hasattr(batch_class, "merge"):
        pytest.skip("this release cannot merge rotating caches (mlx-lm before 0.28.4)")
    module = importlib.import_module(batch_class.__module__)
    ungated("rotating-max-size")
    solo = [module.RotatingKVCache(8), module.RotatingKVCache(8)]
    for cache in solo:
        cache.update_and_fetch(mx.ones((1, 1, 3, 4)), mx.ones((1, 1, 3, 4)))
        cache.max_size = mx.array([8])
    batch = batch_class.merge(solo)
    assert type(batch.max_size) is int
    assert batch.max_size == 8


@pytest.mark.parametrize("cache_class", CLASSES)
def test_copies_and_missing_attribute(cache_class, ungated):
    ungated("rotating-max-size")
    cache = make(cache_class)
    assert copy.copy(cache).max_size == copy.deepcopy(cache).max_size == 8
    del cache.max_size
    assert not hasattr(cache, "max_size")
    with pytest.raises(AttributeError, match="max_size"):
        del cache.max_size


@pytest.mark.parametrize("cache_class", PATCHED)
def test_caches_survive_restore(cache_class, ungated):
    held = make(cache_class)
    manager = ungated("rotating-max-size")
    during = make(cache_class)
    during.max_size = mx.array(8)
    manager.restore()
    assert (held.max_size, during.max_size) == (8, 8)
    assert type(during.max_size) is int
    during.max_size = 16
    assert during.max_size == 16


# The values that each mutant does not convert.
UNCONVERTED = {
    "everything": lambda value: True,
    "elements": lambda value: hasattr(value, "tolist"),
    "text": lambda value: isinstance(value, str),
    "several elements": lambda value: getattr(value, "size", 1) > 1,
}


@pytest.mark.parametrize("leaves", UNCONVERTED.values(), ids=UNCONVERTED)
@pytest.mark.parametrize("cache_class", PATCHED)
def test_mutant_turns_probe_red(cache_class, leaves, ungated, monkeypatch):
    path = f"{cache_class.__module__}:{cache_class.__name__}.max_size"
    [target] = [target for target in PATCH.targets if target.path == path]
    monkeypatch.setattr(
        rotating, "convert_to_int", lambda value: value if leaves(value) else convert_to_int(value)
    )
    ungated("rotating-max-size")
    assert run_probe(PATCH, target).red
