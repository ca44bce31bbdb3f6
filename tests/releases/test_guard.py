import logging

import mlx.core as mx
import pytest

from mlx_patches.core.patch import Patch, Target, around
from mlx_patches.probes.batch_invariance import batch_cache, tiny

from .conftest import is_installed

PLACES = {
    "llama": ("mlx-lm", "mlx_lm.models.base", "create_attention_mask"),
    "gemma4": ("mlx-vlm", "mlx_vlm.models.gemma4.language", "LanguageModel.__call__"),
}


def early(original, *args, **kwargs):
    raise ValueError("too early")


def logits(model):
    return model.call([[1, 2, 3, 4]], batch_cache(model, [0]))


@pytest.mark.parametrize("name", [n for n, (own, *_) in PLACES.items() if is_installed(own)])
def test_model_survives_failing_layers(name, caplog, ungated):
    place = Target(*PLACES[name], around(early))
    patch = Patch("raising", "on purpose", (place,), probe="none:none", module=__name__)
    model = tiny(PLACES[name][0], name)
    expected = logits(model)
    manager = ungated(patch)
    assert [o.status for o in manager.status()] == ["applied"]
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        for _ in range(10):
            assert mx.array_equal(logits(model), expected)
    assert not manager.withdrawn
    assert [o.status for o in manager.status()] == ["failed"]
    assert caplog.text.count("mlx_patches: raising failed in this call of") == 1
