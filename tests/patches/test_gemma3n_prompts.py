from types import SimpleNamespace

import mlx.core as mx

from mlx_patches.patches.models.gemma3n_prompts.patch import exchange_axes, scale_words


def test_only_words_are_multiplied():
    model = SimpleNamespace(embed_vision=SimpleNamespace(vocab_offset=8))
    embedded = SimpleNamespace(inputs_embeds=mx.ones((1, 3, 4)))
    found = scale_words(embedded, model, input_ids=mx.array([[7, 8, 9]]))
    assert found is embedded
    assert found.inputs_embeds[0, :, 0].tolist() == [2.0, 1.0, 1.0]
    half = SimpleNamespace(inputs_embeds=mx.ones((1, 3, 4), mx.bfloat16))
    assert scale_words(half, model, mx.array([[1, 2, 3]])).inputs_embeds.dtype == mx.bfloat16


def test_only_pooled_features_are_exchanged():
    adapter = SimpleNamespace(out_channels=3)
    pooled = mx.arange(12).reshape(1, 2, 2, 3)
    assert exchange_axes(pooled, adapter)[0, 0, 1].tolist() == pooled[0, 1, 0].tolist()
    other = mx.arange(12).reshape(1, 3, 2, 2)
    assert exchange_axes(other, adapter) is other
