"""``embedding-window``: texts that fit a window are unchanged, longer ones see the window."""

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.masks.embedding_window import patch
from mlx_patches.patches.masks.embedding_window.probe import encode
from mlx_patches.probes.encoders import build_encoder

MODULES = ("mlx_vlm.models.gemma3_embedding.gemma3_embedding", "mlx_embeddings.models.gemma3_text")


@pytest.mark.parametrize("module", MODULES)
def test_short_texts_are_unchanged(module, ungated):
    if not source_file(module):
        pytest.skip(f"no {module} here")
    tokens = mx.arange(3, 13).reshape(2, 5)
    released = encode(build_encoder(module), tokens)
    ungated("embedding-window")
    found = encode(build_encoder(module), tokens)
    # mlx-embeddings 0.0.5 adds 1 to every score.
    is_same = mx.allclose if "mlx_embeddings" in module else mx.array_equal
    assert is_same(found, released)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_mask_is_finite_for_far_pad_tokens(dtype):
    mask = mx.where(mx.arange(9) < 2, 0, -mx.inf).astype(dtype)[None, None, None]
    limited = patch.limit_mask(mask, 2, dtype)
    assert limited.dtype == dtype
    assert (limited.max(axis=-1) > -mx.inf).all()
    assert (limited[0, 0, 0, :2] == 0).all()
    assert patch.limit_mask(mask, 8, dtype) is mask


def test_integers_mask_pad_tokens():
    mask = patch.limit_mask(mx.array([[1, 1, 0]]), None, mx.float16)
    assert mask.tolist() == [[0, 0, -float("inf")]]
