import mlx.core as mx
import pytest

from ..releases.models import build_or_skip


@pytest.mark.parametrize("family", ["granite", "granitemoe", "minicpm", "minicpm3"])
def test_decode_equals_prefill(family, ungated):
    model = build_or_skip(f"mlx-vlm:{family}")
    language, tokens = model.module, mx.array([[1, 2, 3, 4, 5]])
    embedded = language.model.embed_tokens(tokens)
    prefill = language(tokens, inputs_embeds=embedded, cache=model.make_cache()).logits
    ungated("embedding-scale")
    again = language(tokens, inputs_embeds=embedded, cache=model.make_cache()).logits
    assert mx.array_equal(again, prefill)
    cache = model.make_cache()
    rows = [language(tokens[:, place : place + 1], cache=cache).logits for place in range(5)]
    assert mx.allclose(mx.concatenate(rows, axis=1), prefill, atol=1e-4)
