"""``rapid-logprobs``: which chunks have log-probabilities."""

import pytest

from mlx_patches.patches.vllm_mlx.rapid_logprobs.probe import extract

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("count", "chunk"),
    [
        (1, {"finished": True, "finish_reason": "length"}),
        (0, {"finished": True, "finish_reason": "stop"}),
        (0, {"tokens": []}),
        (1, {"new_text": "w", "finished": True, "finish_reason": "stop"}),
    ],
)
def test_tokens_of_the_answer_have_logprobs(count, chunk, ungated):
    module_or_skip("rapid_mlx.service.helpers", "_extract_streaming_token_logprobs")
    mx = pytest.importorskip("mlx.core")
    ungated("rapid-logprobs")
    assert len(extract(mx.array([-1.0, -2.0, -0.5]), **chunk)) == count
