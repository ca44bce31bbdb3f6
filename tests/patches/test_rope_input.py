import mlx.core as mx
import pytest

from mlx_patches.patches.positions.rope_input.probe import make

from ..releases.models import module_or_skip


@pytest.mark.parametrize("name", ["SuScaledRoPE", "YarnRoPE"])
@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_result_keeps_its_bits(name, offset, dtype, ungated):
    rope = make(module_or_skip("mlx_lm.models.rope_utils"), name)
    x = mx.random.normal((1, 2, 4, 8), key=mx.random.key(5)).astype(dtype)
    expected = rope(x.astype(x.dtype), offset=offset)
    ungated("rope-input")
    assert mx.array_equal(rope(x, offset=offset), expected)
    assert mx.array_equal(rope(x, offset), expected)
