import mlx.core as mx
import pytest

from mlx_patches.probes.quantized_batches import Kind

from ..releases.models import module_or_skip


@pytest.mark.parametrize("padding", [[0, 0], [1, 0]])
def test_qwen_decode_mask_with_padding(ungated, padding):
    module_or_skip("mlx_vlm.turboquant")  # without it there are no quantized batches
    language = module_or_skip("mlx_vlm.models.qwen3_5.language", "_create_qwen3_5_attention_mask")
    caches = module_or_skip("mlx_vlm.models.cache")
    cache = Kind(caches.BatchQuantizedKVCache).batch(padding, 3)
    ungated("quantized-decode-mask")
    mask = language._create_qwen3_5_attention_mask(mx.zeros((2, 1, 8)), cache)
    assert (mask is None) == (not any(padding))
