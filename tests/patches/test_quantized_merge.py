"""Quantized prompts in the release's own batch generator, and rows that may not change."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.quantized.affine import dequantize_row
from mlx_patches.probes.quantized_batches import feed

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core", reason="every release set has MLX")
PATCH = catalogue.builtin().get("quantized-merge")
CACHES = "mlx_lm.models.cache" if installed("mlx-lm") else "mlx_vlm.models.cache"


def test_plain_rows_stay_the_same_object():
    caches = importlib.import_module(CACHES)
    row = caches.KVCache()
    assert dequantize_row(row) is row


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_plain_row_has_the_type_and_the_room_of_its_tokens(dtype):
    caches = importlib.import_module(CACHES)
    row = caches.QuantizedKVCache(group_size=32, bits=8)
    assert dequantize_row(row).keys is None
    row.update_and_fetch(*[mx.ones((1, 2, 5, 64), getattr(mx, dtype))] * 2)
    out = dequantize_row(row)
    assert (out.offset, out.keys.shape) == (5, (1, 2, 5, 64))
    assert out.keys.dtype == getattr(mx, dtype)
    assert row.offset == 5


@pytest.mark.skipif(not installed("mlx-lm"), reason="the generator is mlx-lm's")
@pytest.mark.parametrize("heads", [1, 2])
def test_quantized_prompts_speak_as_alone_in_floats(heads, ungated):
    generate = importlib.import_module("mlx_lm.generate")
    if not hasattr(generate, "BatchGenerator") or not hasattr(generate, "_merge_caches"):
        pytest.skip("this release batches no prompts with a history")
    ungated(PATCH)
    model, caches = _llama(heads), importlib.import_module(CACHES)
    prompts = [[5, 9, 2, 7], [3, 3, 8]]
    histories = [list(range(1, 12)), list(range(20, 26))]
    rows, alone = [], []
    for history, prompt in zip(histories, prompts, strict=True):
        cache = [caches.QuantizedKVCache(group_size=32, bits=4) for _ in model.layers]
        model(mx.array([history]), cache=cache)
        rows.append(cache)
        alone.append(_greedy(model, prompt, [dequantize_row(layer) for layer in cache]))
    generator = generate.BatchGenerator(model, max_tokens=5)
    uids = generator.insert(prompts, caches=rows)
    assert _spoken(generator, uids) == alone


def _greedy(model, prompt, cache, count=5):
    said = []
    tokens = prompt
    for _ in range(count):
        logits = model(mx.array([tokens]), cache=cache)
        tokens = [mx.argmax(logits[0, -1]).item()]
        said += tokens
    return said


def _spoken(generator, uids):
    said = {uid: [] for uid in uids}
    for _ in range(30):
        answers = generator.next()
        for answer in answers[1] if isinstance(answers, tuple) else answers:
            said[answer.uid].append(answer.token)
        if all(len(tokens) == 5 for tokens in said.values()):
            break
    return [said[uid] for uid in uids]


def _llama(heads=2):
    from mlx.utils import tree_map

    module = importlib.import_module("mlx_lm.models.llama")
    model = module.Model(
        module.ModelArgs(
            model_type="llama",
            hidden_size=128,
            num_hidden_layers=2,
            intermediate_size=96,
            num_attention_heads=4,
            num_key_value_heads=heads,
            rms_norm_eps=1e-6,
            vocab_size=64,
        )
    )
    keys = iter(mx.random.split(mx.random.key(0), 100))
    model.update(
        tree_map(
            lambda x: (
                mx.random.normal(x.shape, key=next(keys)) * x.shape[-1] ** -0.5 * 1.4
                if x.ndim > 1
                else x
            ),
            model.parameters(),
        )
    )
    return model


def test_what_a_row_alone_holds_is_not_touched(ungated):
    ungated(PATCH)
    caches = importlib.import_module(CACHES)
    if not hasattr(caches.KVCache, "merge"):
        pytest.skip("this release merges no caches by a method of theirs")
    row, other = (caches.QuantizedKVCache(group_size=32, bits=4) for _ in range(2))
    feed(row, [(0, 0)], 5)
    feed(other, [(1, 0)], 3)
    before = [part.tolist() for part in (*row.keys, *row.values)]
    batch = caches.QuantizedKVCache.merge([row, other])
    feed(batch, [(0, 5), (1, 3)], 1)
    assert [part.tolist() for part in (*row.keys, *row.values)] == before


@pytest.mark.skipif(not installed("mlx-lm"), reason="the model is mlx-lm's")
def test_a_quantized_run_alone_is_bit_for_bit_as_before(ungated):
    def logits():
        model, caches = _llama(), importlib.import_module(CACHES)
        cache = [caches.QuantizedKVCache(group_size=32, bits=4) for _ in model.layers]
        pieces = ([1, 2, 3, 4], [5, 6, 7], [8])
        return [model(mx.array([piece]), cache=cache).tolist() for piece in pieces]

    before = logits()
    ungated(PATCH)
    assert logits() == before
