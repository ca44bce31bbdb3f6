from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.generation.top_p_rows import patch as top_p_rows

from ..releases.models import module_or_skip


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_rows_have_own_nucleus(dtype, ungated, beside):
    module = module_or_skip("mlx_vlm.sample_utils")
    ungated("top-p-rows")
    beside("top-p-dtype")
    probable = [5, 2, 7]
    logits = (20.0 * mx.eye(8)[mx.array(probable)]).astype(dtype)
    tokens = module.top_p_sampling(logits, 0.5, 1.0)
    assert (tokens.shape, tokens.tolist()) == ((3,), probable)
    assert module.top_p_sampling(logits[1:2], 0.5, 1.0).tolist() == [2]


def test_solo_row_is_not_split():
    for shape in ((1, 8), (8,), (2, 3, 8)):
        logits = SimpleNamespace(ndim=len(shape), shape=shape)
        assert not top_p_rows.has_several_rows(logits)
