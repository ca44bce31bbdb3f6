from types import SimpleNamespace

import mlx.core as mx
import pytest

from ..releases.models import build_or_skip


@pytest.mark.parametrize("family", ["phi", "recurrent_gemma", "zaya1_vl"])
def test_keyword_equals_positional(family, ungated):
    model = build_or_skip(f"mlx-vlm:{family}")
    tokens = mx.array([[1, 2, 3]])
    language = model.module
    first = language(tokens, cache=model.make_cache()).logits
    ungated("token-names")
    for cache in (model.make_cache(), model.make_cache()):
        assert mx.array_equal(language(inputs=tokens, cache=cache).logits, first)
    assert mx.array_equal(language(tokens, cache=model.make_cache()).logits, first)


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"token-names": ((SimpleNamespace(), [[0]]), {})}
