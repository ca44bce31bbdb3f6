import importlib

import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.loading.norm_shift import patch as norm_shift
from mlx_patches.patches.loading.norm_shift import probe

from ..releases.conftest import is_installed, verdict

PATCH = catalogue.builtin().get("norm-shift")


def present():
    for target in PATCH.targets:
        if is_installed(target.distribution):
            try:
                module = importlib.import_module(target.module)
            except ModuleNotFoundError:
                continue
            kind = getattr(module, target.name.partition(".")[0], None)
            if hasattr(kind, "sanitize"):
                yield pytest.param(target, kind, id=target.path)


@pytest.mark.parametrize(("target", "kind"), list(present()))
def test_published_checkpoint_is_bit_identical(target, kind, ungated):
    def sanitize_all():
        return [
            kind.sanitize(probe.stand_in(), weights)
            for label, weights, _ in probe.checkpoints(target)
            if "published" in label
        ]

    before = sanitize_all()
    ungated("norm-shift")
    for was, got in zip(before, sanitize_all(), strict=True):
        assert list(was) == list(got)
        assert all(was[name].dtype == got[name].dtype for name in was)
        assert all(mx.array_equal(was[name], got[name]).item() for name in was)


@pytest.mark.parametrize(("target", "kind"), list(present()))
def test_converted_norms_are_unchanged(target, kind, ungated):
    if not verdict(PATCH, target).ok:
        pytest.skip("this release is right")
    ungated("norm-shift")
    for label, weights, _ in probe.checkpoints(target):
        if "converted" in label:
            wanted = [v for n, v in weights.items() if n.endswith("norm.weight") and "mtp" not in n]
            got = kind.sanitize(probe.stand_in(), dict(weights))
            norms = [value for name, value in got.items() if name.endswith("norm.weight")]
            assert [id(value) for value in norms] == [id(value) for value in wanted]


def test_only_converted_vectors_are_kept():
    seen = {}

    def sanitize(model, weights):
        seen.update({name: value.ndim for name, value in weights.items()})
        return {f"new.{name}": value for name, value in weights.items()}

    weights = {"a": mx.zeros((2,)), "b": mx.zeros((1, 2)), "c": mx.zeros((2,))}
    out = norm_shift.sanitize_without_shift(sanitize, None, weights, ["a", "b"])
    assert seen == {"a": 2, "b": 2, "c": 1}
    assert out["new.a"] is weights["a"]
    assert out["new.b"] is weights["b"]
    assert weights["a"].shape == (2,)

    assert not norm_shift.is_converted({"model.norm.weight": None})
