"""A stand-in has its own parts and is the whole in all else; copies do not recurse."""

import copy
import pickle
from types import SimpleNamespace

import pytest

from mlx_patches.patches._shared.parts import Overlay


def test_overlay():
    shown = Overlay(str.upper, layers=3)
    assert (shown.layers, shown("a"), shown.__class__) == (3, "A", Overlay)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = shown.no_such_thing


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_overlay_copies(copied):
    other = copied(Overlay(SimpleNamespace(a=1, b=2), b=3))
    assert (type(other), other.a, other.b) == (Overlay, 1, 3)
