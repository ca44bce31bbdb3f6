import pytest

from mlx_patches.auditing import measured as auditing
from mlx_patches.auditing.verdict import ModelVerdict
from mlx_patches.matrix.gate import Gate

from .conftest import matrix_for, patch_of, registry_of, target

CACHE = "class KVCache:\n    def update(self):\n        pass\n"


def at(module, name="KVCache.update"):
    distribution = "mlx-lm" if module.startswith("mlx_lm") else "mlx-vlm"
    return target(name, module, distribution=distribution)


@pytest.fixture
def releases(site):
    """Two model packages: families a, b and c in the first, a in the second."""
    for package in ("mlx_lm", "mlx_vlm"):
        site.write(f"{package}/models/cache.py", CACHE)
        site.write(f"{package}/models/base.py")
    site.write("mlx_lm/generate.py", "from .models import cache\n")
    for family in ("a", "b"):
        site.write(f"mlx_lm/models/{family}.py", "from .cache import KVCache\nclass Model: pass\n")
    site.write("mlx_lm/models/c.py", "from .base import (\n    args,\n)\nfrom . import b\n")
    site.write("mlx_vlm/models/a/language.py", "from ..cache import KVCache\n")
    return site


def table(patch, rows, sound=(), measured=None):
    return auditing.find_affected(
        Gate(matrix_for(patch, models={"default": {}, **rows})),
        registry_of(patch),
        lambda patch, target: target.module not in sound,
        measured or {},
    )


EVERYWHERE = {name: {"mlx-lm": ["fix"], "mlx-vlm": ["fix"]} for name in "abc"}


def test_targets_count_for_their_families(releases):
    patch = patch_of(at("mlx_lm.models.cache"), at("mlx_vlm.models.cache"))
    both = {"mlx-lm": ("fix",), "mlx-vlm": ("fix",)}
    one = {"mlx-lm": ("fix",)}
    assert table(patch, EVERYWHERE) == {"a": both, "b": one, "c": one}
    sound = table(patch, EVERYWHERE, sound=["mlx_vlm.models.cache"])
    assert sound == {key: {"mlx-lm": ("fix",)} for key in "abc"}
    patch = patch_of(at("mlx_lm.models.a"), at("mlx_lm.models.b"))
    one = {"mlx-lm": ("fix",)}
    assert table(patch, EVERYWHERE) == dict.fromkeys("abc", one)
    # c imports b, and a imports neither.
    assert table(patch, EVERYWHERE, sound=["mlx_lm.models.a"]) == dict.fromkeys("bc", one)

    patch = patch_of(at("mlx_lm.server"))
    assert table(patch, EVERYWHERE) == {key: {"mlx-lm": ("fix",)} for key in "abc"}


def test_imported_distribution_counts(releases):
    releases.write("mlx_vlm/models/cache.py", "from mlx_lm.models.cache import KVCache\n")
    patch = patch_of(at("mlx_lm.models.cache"))
    found = table(patch, EVERYWHERE)
    assert found["a"] == {"mlx-lm": ("fix",), "mlx-vlm": ("fix",)}


def test_measurement_outranks_entry(releases):
    patch = patch_of(at("mlx_lm.models.cache"))
    rows = {"a": {"mlx-lm": ["fix"]}, "b": {"mlx-lm": []}}
    measured = {"mlx-lm": {"a": [], "b": ["fix", "a-patch-of-then"], "gone": ["fix"]}}
    assert table(patch, rows, measured=measured) == {"b": {"mlx-lm": ("fix",)}}
    assert table(patch, rows) == {"a": {"mlx-lm": ("fix",)}}


def test_patches_of_verdicts_are_listed():
    verdicts = [
        ModelVerdict("a", "mlx-lm", "1.0", "repaired", patches=("x", "y")),
        ModelVerdict("b", "mlx-lm", "1.0", "green"),
        ModelVerdict("c", "mlx-lm", "1.0", "", patches=("x",)),  # not measured: its entry counts
    ]
    assert auditing.list_patches(verdicts) == {"mlx-lm": {"a": ("x", "y"), "b": ()}}
