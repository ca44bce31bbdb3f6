"""``encoder-masks``: a text's embedding equals its solo run, in each type."""

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.masks.encoder_masks import patch
from mlx_patches.patches.masks.encoder_masks.probe import TYPES
from mlx_patches.probes.encoders import build_encoder, embed

MODULES = (
    "mlx_vlm.models.modernbert.modernbert",
    "mlx_embeddings.models.modernbert",
    "mlx_embeddings.models.qwen3",
)


@pytest.fixture(params=MODULES)
def module(request):
    if not source_file(request.param):
        pytest.skip(f"no {request.param} here")
    return request.param


@pytest.mark.parametrize("dtype", TYPES)
def test_unpadded_embeddings_are_unchanged(dtype, module, ungated):
    model = build_encoder(module, dtype)
    tokens, mask = mx.arange(3, 33).reshape(2, 15), mx.ones((2, 15))
    released = embed(model, tokens, mask)
    ungated("encoder-masks")
    assert mx.array_equal(embed(model, tokens, mask), released)


def test_finite_masks_are_the_same_objects():
    mask = mx.full((1, 1), -1e9)
    assert patch.limit_mask(mask) is mask
    half = mask.astype(mx.float16)
    assert patch.limit_mask(half).item() == patch.LEAST
