import mlx.core as mx
import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches.models.unknown_kwargs.patch import drop_unknown
from mlx_patches.patches.models.unknown_kwargs.probe import FORWARDED

from ..releases.conftest import is_installed


def test_unknown_arguments_are_dropped():
    def call(self, inputs, mask=None, *, cache=None):
        return inputs, mask, cache

    patched = drop_unknown(call)
    assert patched(None, 1, 2, cache=3, n_to_process=4) == (1, 2, 3)
    assert patched(None, inputs=1, mask=2) == (1, 2, None)
    with pytest.raises(TypeError):
        patched(None, n_to_process=4)


def test_call_with_kwargs_gets_all():
    def call(self, inputs, **kwargs):
        return kwargs

    assert drop_unknown(call)(None, 1, n_to_process=4) == {"n_to_process": 4}


@pytest.mark.skipif(not is_installed("mlx-vlm"), reason="no mlx-vlm here")
@pytest.mark.parametrize("family", ["aya_vision", "llava", "multi_modality"])
def test_logits_are_unchanged(family, ungated):
    model = build(Family("mlx-vlm", family))
    before = model.call([[1, 2, 3]], model.make_cache())
    ungated("unknown-kwargs")
    after = model.call([[1, 2, 3]], model.make_cache(), **dict.fromkeys(FORWARDED))
    assert mx.array_equal(before, after)
