from types import SimpleNamespace

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches.models.batch_refused import patch
from mlx_patches.patches.models.batch_refused.probe import make_batch

from ..releases.models import build_or_skip

FAMILIES = ["mlx-lm:llama4", "mlx-lm:ministral3", "mlx-vlm:qwen4_exp"]


@pytest.mark.parametrize("name", FAMILIES)
def test_batch_is_refused_solo_is_not(name, ungated):
    model = build_or_skip(name)
    batch = make_batch(model)
    ungated("batch-refused")
    with pytest.raises(ValueError, match="is not supported by this release of mlx-") as caught:
        model.call([[4, 5], [6, 7]], batch)
    assert is_refusal(caught.value)
    assert patch.SOLO in str(caught.value)
    assert model.call([[4, 5]], model.make_cache()).shape[:2] == (1, 2)


def test_engine_refuses_chunks_and_rows():
    chunked = type("ChunkedKVCache", (), {})
    with pytest.raises(ValueError, match="a batch of llama4 is not supported") as caught:
        patch.make_batch(None, SimpleNamespace(make_cache=lambda: [1, chunked()]), [0])
    assert is_refusal(caught.value)
    for model in (SimpleNamespace(), SimpleNamespace(make_cache=lambda: [1])):
        assert patch.make_batch(lambda *given: [*given], model, [0, 1]) == [model, [0, 1]]
    plain = SimpleNamespace(update_and_fetch=None, offset=3)
    assert patch.is_batch([SimpleNamespace(cache=[]), plain], "update_indexer")
    assert not patch.is_batch([SimpleNamespace(cache=[]), plain])
    plain.update_indexer = None
    assert not patch.is_batch([plain], "update_indexer")
