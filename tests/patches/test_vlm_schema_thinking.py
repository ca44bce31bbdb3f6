"""``vlm-schema-thinking``: the first token decides whether a schema waits."""

from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_schema_thinking import patch
from mlx_patches.patches.server.vlm_schema_thinking.probe import Schema

from ..releases.models import module_or_skip

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.structured"), reason="no schemas here")


@pytest.fixture
def first():
    structured = module_or_skip("mlx_vlm.structured", "ThinkingAwareLogitsProcessor")
    tokenizer = SimpleNamespace(encode=lambda text, **_: [1 if text == "<think>" else 2])
    return patch.FirstToken(
        structured.ThinkingAwareLogitsProcessor(Schema(), tokenizer, enable_thinking=True)
    )


def list_allowed(row):
    return [index for index in range(row.shape[-1]) if not mx.isinf(row[0, index])]


def test_first_token_begins_thinking_or_answer(first):
    logits = mx.zeros((1, 16))
    assert list_allowed(first(mx.array([3]), logits)) == [1, 5]
    assert list_allowed(first.process_last_token(5, logits)) == [5]


def test_thinking_is_free(first):
    logits = mx.zeros((1, 16))
    first(mx.array([3]), logits)
    assert first.process_last_token(1, logits) is logits
    assert first.process_last_token(9, logits) is logits
    assert list_allowed(first.process_last_token(2, logits)) == [5]


def test_reset_and_clone_decide_anew(first):
    logits = mx.zeros((1, 16))
    first.process_last_token(5, logits)
    first.reset()
    assert list_allowed(first(mx.array([3]), logits)) == [1, 5]
    assert first.enable_thinking is True
